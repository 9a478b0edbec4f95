"""Which engine is right for a model: decided by trying, because no rule of thumb is."""

from time import perf_counter
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from partavg.core.loop import Batch, Engine
from partavg.engines.looped import looped
from partavg.engines.model import RowModel
from partavg.engines.vmapped import vmapped

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
        return looped(model) if self.name == "looped" else vmapped(model, self.chunk)


def choose(
    name: str, chunk: int, model: RowModel, start: tuple[Tensor, Tensor], batch: Batch
) -> Choice:
    """Take the engine called `name`, or for "auto" the faster one on the first rows of a batch.

    `chunk` is the number of workers in one vmapped pass; 0 leaves it to be chosen too.
    """
    workers = len(batch.keys)
    if name == "looped":
        return Choice("looped", 1, "as configured")
    few = min(_FEW, workers)
    expected = _try(looped(model), start, batch, few)
    try:
        found = _try(vmapped(model, few), start, batch, few)
        problem = None if _agree(expected, found) else "its gradients differ from looped"
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
    loop = _seconds(looped(model), start, batch, min(_FEW, workers))
    chunks = {min(chunk, workers)} if chunk else {min(_MANY, workers)}
    passes = {size: _seconds(vmapped(model, size), start, batch, size) for size in chunks}
    if not chunk and workers > _MANY and passes[_MANY] < loop:
        passes[workers] = _seconds(vmapped(model, workers), start, batch, workers)
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
    some = Batch(*(field[:rows] for field in batch))
    found = list(engine(params, buffers, some))
    losses = torch.cat([each.losses for each in found])
    grads = torch.cat([torch.cat([grad for _, grad in each.pieces], 1) for each in found])
    return _Trial(losses, grads, buffers)


def _agree(one: _Trial, other: _Trial) -> bool:
    """Equal up to rounding, which a deep network in float32 magnifies."""
    return all((a - b).norm() <= 1e-3 * (a.norm() + 1e-6) for a, b in zip(one, other, strict=True))


def _seconds(engine: Engine, start: tuple[Tensor, Tensor], batch: Batch, rows: int) -> float:
    """The shortest time of an iteration, per row, after a warm-up."""
    params, buffers = (row.expand(rows, -1).clone() for row in start)
    some = Batch(*(field[:rows] for field in batch))
    times: list[float] = []
    while len(times) < 2 or sum(times[1:]) < _MOMENT:
        began = perf_counter()
        for _ in engine(params, buffers, some):
            pass
        if params.is_cuda:
            torch.cuda.synchronize()
        times.append(perf_counter() - began)
    return min(times[1:]) / rows
