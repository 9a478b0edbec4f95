"""Engines timed against a loop, one after another."""

from functools import cached_property
from time import perf_counter

import torch

from partavg.core.loop import Batch, Engine
from partavg.engines.choice import Choice
from partavg.engines.examine import Rows
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel

FEW = 2  # rows to try a loop on
_MANY = 16  # rows to try a pass on, besides all
_MOMENT = 0.1  # seconds to spend on timing one engine


class Race:
    """The loop, and those that can run a model too, in passes of the best size."""

    def __init__(self, model: RowModel, start: Rows, batch: Batch) -> None:
        self._given = model, start, batch
        self._best, self._least = Choice("looped", 1, ""), float("inf")
        self._times: list[str] = []

    @cached_property
    def _loop(self) -> float:
        model, start, batch = self._given
        rows = rows_of(start, min(FEW, len(batch.keys)))
        self._least = _seconds(Looped(model, ()), rows, batch)
        self._times.append(f"looped {_milliseconds(self._least)}")
        return self._least

    @property
    def lead(self) -> float:
        """How many times as fast as the loop the fastest one is, as far as they were timed."""
        return self._loop / self._least if self._times else 1.0

    def run(self, engine: Choice) -> None:
        """Time one more."""
        loop, (model, start, batch) = self._loop, self._given
        if engine.name == "threads":
            rows = rows_of(start, min(2 * engine.chunk, len(batch.keys)))
            own, least = engine, _seconds(engine.build(model), rows, batch)
        else:
            own, least = _in_passes(engine, model, start, batch, loop)
        self._times.append(f"{engine.name} {_milliseconds(least)}")
        if least < self._least:
            self._best, self._least = own, least

    def won(self, why: str) -> Choice:
        """The fastest one, and why; others may not have been able to take part."""
        if not self._times:
            return self._best._replace(reason=why.removesuffix("; "))
        said = f"{why}{', '.join(self._times)} per worker"
        of_best = {"looped": "", "threads": f"; {self._best.chunk} threads"}
        told = of_best.get(self._best.name, f" in chunks of {self._best.chunk}")
        return self._best._replace(reason=said + told)


def _in_passes(
    engine: Choice, model: RowModel, start: Rows, batch: Batch, loop: float
) -> tuple[Choice, float]:
    """An engine with the best number of workers in a pass, and its seconds per worker."""
    workers = len(batch.keys)
    sizes = [engine.chunk] if engine.chunk else [_MANY, workers]
    passes: dict[int, float] = {}
    for size in sorted({min(size, workers) for size in sizes}):
        if min(passes.values(), default=loop) <= loop:  # a larger pass of a slow engine is slow
            try:
                made = engine._replace(chunk=size).build(model)
                passes[size] = _seconds(made, rows_of(start, size), batch)
            except RuntimeError:  # out of memory
                break
    best = min(passes, key=passes.__getitem__, default=1)
    return engine._replace(chunk=best), passes.get(best, float("inf"))


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.2g} ms" if value < 10 else f"{value:.0f} ms"


def _seconds(engine: Engine, rows: Rows, batch: Batch) -> float:
    """The shortest time of an iteration, per row, after a warm-up."""
    params, buffers = rows
    some = batch.some(slice(len(params)))
    times: list[float] = []
    while len(times) < 2 or sum(times[1:]) < _MOMENT:
        began = perf_counter()
        for found in engine(params, buffers, some):
            list(found.pieces)
        if params.is_cuda:
            torch.cuda.synchronize(params.device)
        times.append(perf_counter() - began)
    return min(times[1:]) / len(params)


def rows_of(start: Rows, count: int, apart: float = 0.0) -> Rows:
    """That many workers, all at the start or a little apart from it, each elsewhere."""
    params, buffers = (row.expand(count, -1).clone() for row in start)
    noise = torch.randn(params.shape, generator=torch.Generator().manual_seed(0))
    return params.add_(noise.to(params), alpha=apart), buffers
