"""Which engine is right for a model: decided by trying, because no rule of thumb is."""

from time import perf_counter
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from partavg.core.loop import Batch, Engine
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.engines.vmapped import Vmapped

_FEW, _MANY = 2, 16  # rows to try a loop and a pass on
_MOMENT = 0.2  # seconds to spend on timing one engine


EngineName = Literal["auto", "looped", "vmapped"]


class Choice(NamedTuple):
    """An engine, and why it was taken."""

    name: EngineName
    chunk: int
    reason: str

    def build(self, model: RowModel) -> Engine:
        """The engine itself."""
        return Looped(model) if self.name == "looped" else Vmapped(model, self.chunk)


def choose(
    name: str, chunk: int, model: RowModel, start: tuple[Tensor, Tensor], batch: Batch
) -> Choice:
    """Take the engine called `name`, or for "auto" the faster one on the first rows of a batch.

    `chunk` is the number of workers in one vmapped pass; 0 leaves it to be chosen too.
    """
    workers = len(batch.keys)
    if name == "looped":
        return Choice("looped", 1, "as configured")
    looped = _try(Looped(model), start, batch, min(_FEW, workers))
    try:
        agreed = _try(Vmapped(model, _FEW), start, batch, min(_FEW, workers))
        problem = None if _agree(looped, agreed) else "it does not agree with looped"
    except (RuntimeError, ValueError, NotImplementedError) as error:
        problem = str(error).strip().splitlines()[0]
    if name == "vmapped":
        if problem:
            raise ValueError(
                f"engine vmapped cannot run this model: {problem}; use engine looped or auto"
            )
        return Choice("vmapped", chunk or workers, "as configured")
    if problem:
        return Choice("looped", 1, f"vmapped cannot run this model: {problem}")
    return _fastest(chunk, model, start, batch)


def _fastest(chunk: int, model: RowModel, start: tuple[Tensor, Tensor], batch: Batch) -> Choice:
    workers = len(batch.keys)
    loop = _seconds(Looped(model), start, batch, min(_FEW, workers))
    chunks = {min(chunk, workers)} if chunk else {min(_MANY, workers)}
    passes = {size: _seconds(Vmapped(model, size), start, batch, size) for size in chunks}
    if not chunk and workers > _MANY and passes[_MANY] < loop:
        passes[workers] = _seconds(Vmapped(model, workers), start, batch, workers)
    best = min(passes, key=passes.__getitem__)
    times = f"looped {loop * 1e3:.2g} ms, vmapped {passes[best] * 1e3:.2g} ms per worker"
    if loop <= passes[best]:
        return Choice("looped", 1, times)
    return Choice("vmapped", best, f"{times} in chunks of {best}")


class _Trial(NamedTuple):
    losses: Tensor
    grads: Tensor
    buffers: Tensor


def _try(engine: Engine, start: tuple[Tensor, Tensor], batch: Batch, rows: int) -> _Trial:
    """Run the engine on the first rows, all at the same start; nothing is changed."""
    params, buffers = (row.expand(rows, -1).clone() for row in start)
    grads = torch.empty_like(params)
    losses = engine(params, buffers, Batch(*(field[:rows] for field in batch)), grads)
    if params.is_cuda:
        torch.cuda.synchronize()
    return _Trial(losses, grads, buffers)


def _agree(one: _Trial, other: _Trial) -> bool:
    """Equal up to rounding, which a deep network in float32 magnifies."""
    return all((a - b).norm() <= 1e-3 * (a.norm() + 1e-6) for a, b in zip(one, other, strict=True))


def _seconds(engine: Engine, start: tuple[Tensor, Tensor], batch: Batch, rows: int) -> float:
    """The shortest time of an iteration, per row, after a warm-up."""
    _try(engine, start, batch, rows)
    shortest, spent = float("inf"), 0.0
    while spent < _MOMENT:
        began = perf_counter()
        _try(engine, start, batch, rows)
        took = perf_counter() - began
        shortest, spent = min(shortest, took), spent + took
    return shortest / rows
