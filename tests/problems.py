"""Small problems whose gradients are known in closed form."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from partavg.core.cuts import PARTITIONS
from partavg.core.layout import Layout
from partavg.core.loop import Batch, Gradients
from partavg.core.plan import Plan
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.workers import Workers

LAYOUT = Layout(
    ("one.weight", "one.bias", "two.weight", "two.bias", "three.weight", "three.bias"),
    ((4, 3), (4,), (3, 4), (3,), (5, 2), (5,)),
)


class Quadratic:
    """½ (x − c)ᵀ diag(a) (x − c) for every worker, with a and c from its batch.

    Gradients come a row at a time and in two pieces, as any engine may hand them over.
    """

    def __call__(self, params: Tensor, buffers: Tensor, batch: Batch) -> Iterator[Gradients]:
        middle = params.shape[1] // 2
        for row in range(len(params)):
            away = params[row] - batch.targets[row, 0]
            grad = batch.inputs[row, 0] * away
            yield Gradients(
                slice(row, row + 1),
                0.5 * (grad * away).sum().view(1),
                [
                    (slice(0, middle), grad[None, :middle].clone()),
                    (slice(middle, len(grad)), grad[None, middle:].clone()),
                ],
            )


def quadratic_batches(workers: int, size: int, seed: int = 0) -> Callable[[int], Batch]:
    """Random curvatures and centers: a pure function of the step."""

    def batch(step: int) -> Batch:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        shape = (workers, 1, size)
        return Batch(
            torch.rand(shape, generator=generator, dtype=torch.float64),
            torch.randn(shape, generator=generator, dtype=torch.float64),
            torch.zeros(workers, dtype=torch.long),
        )

    return batch


def plan(
    schedule: Schedule, workers: int, maker: str = "channel", weights: Tensor | None = None
) -> Plan:
    """A plan for LAYOUT without buffers."""
    if weights is None:
        weights = torch.full((workers,), 1 / workers, dtype=torch.float64)
    partition = PARTITIONS[maker](LAYOUT, schedule.parts, 0)
    return Plan(schedule, partition, ((),) * schedule.parts, weights)


def start(solver: Solver, parts: int, params: Tensor) -> Workers:
    """Workers with LAYOUT and without buffers."""
    return Workers.start(params, params.new_empty(len(params), 0), LAYOUT, solver, parts)
