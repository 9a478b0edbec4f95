"""The one training loop: a local step on every worker, then average the parts that are due."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from partavg.core.average import Reduce, alone, exchange_
from partavg.core.layout import Layout
from partavg.core.partition import Partition, Span
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver, State, Sync


class Batch(NamedTuple):
    """One mini-batch for every worker, and a key per worker for all that is random in a step."""

    inputs: Shaped[Tensor, "m n *x"]
    targets: Shaped[Tensor, "m n *y"]
    keys: Int[Tensor, "m"]


class Gradients(NamedTuple):
    """The losses and gradients of some of the workers."""

    rows: slice
    losses: Float[Tensor, "n"]
    pieces: Iterable[tuple[slice, Float[Tensor, "n _"]]]
    """Columns and their gradients, which the solver may use up; together they cover all columns.

    In pieces, so that an engine can let go of them one by one, and that all that a step reads and
    writes stays in the cache."""


@runtime_checkable
class Engine(Protocol):
    """Computes the loss and the gradient of every worker, some workers at a time."""

    def __call__(
        self, params: Float[Tensor, "m d"], buffers: Float[Tensor, "m b"], batch: Batch
    ) -> Iterator[Gradients]:
        """Yield the gradients of all rows in order; update `buffers` in place."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What is averaged, when, and how the workers are weighted."""

    schedule: Schedule
    partition: Partition
    buffer_parts: tuple[tuple[Span, ...], ...]
    """The columns of the buffers that are averaged along with each part."""
    weights: Float[Tensor, "m"]
    """p_i of the workers held here; they sum to 1 over all workers."""

    def __post_init__(self) -> None:
        counts = self.schedule.parts, len(self.partition.parts), len(self.buffer_parts)
        if len(set(counts)) > 1:
            raise ValueError(
                f"the schedule has {counts[0]} parts, the partition {counts[1]} and the buffers "
                f"{counts[2]}: they must be the same"
            )


@dataclass(slots=True)
class Workers:
    """All that training changes. Copy it to go back, save it to resume."""

    params: Float[Tensor, "m d"]
    buffers: Float[Tensor, "m b"]
    memory: State
    """The solver's."""
    steps: Float[Tensor, "m p"]
    """Local steps of each worker since each part was last averaged."""
    lr_sum: Float[Tensor, "m p"]
    """Sum of the learning rates of those steps."""
    step: int = 0
    bytes: int = 0
    """Sent by one worker so far; as much comes back."""
    messages: int = 0

    @classmethod
    def start(
        cls,
        params: Float[Tensor, "m d"],
        buffers: Float[Tensor, "m b"],
        layout: Layout,
        solver: Solver,
        parts: int,
    ) -> "Workers":
        """Workers before their first step."""
        clock = torch.zeros(len(params), parts, dtype=torch.float64, device=params.device)
        return cls(params, buffers, solver.init(params, layout), clock, clock.clone())


class Record(NamedTuple):
    """What one iteration did."""

    step: int
    losses: Float[Tensor, "m"]
    """Mini-batch loss of each worker, before its step."""
    lr: float
    due: tuple[int, ...]
    """The parts that were averaged."""
    bytes: int
    messages: int


def train(
    workers: Workers,
    engine: Engine,
    batches: Callable[[int], Batch],
    *,
    plan: Plan,
    solver: Solver,
    lr: Callable[[int], float],
    until: int,
    reduce: Reduce = alone,
) -> Iterator[Record]:
    """Train up to step `until`, in place; yield a record after each iteration.

    Between two records the caller may evaluate, save `workers`, or stop.
    """
    for step in range(workers.step + 1, until + 1):
        rate = lr(step)
        losses = []
        for rows, values, pieces in engine(workers.params, workers.buffers, batches(step)):
            losses.append(values)
            _step_(workers, solver, rows, pieces, rate)
        workers.steps += 1
        workers.lr_sum += rate
        due = plan.schedule(step)
        for part in due:
            _average_(workers, part, plan, solver, reduce)
        workers.step = step
        yield Record(step, torch.cat(losses), rate, due, workers.bytes, workers.messages)


def _step_(
    workers: Workers,
    solver: Solver,
    rows: slice,
    pieces: Iterable[tuple[slice, Tensor]],
    lr: float,
) -> None:
    """Take the local step of some rows."""
    count = len(workers.params)
    for columns, grads in pieces:
        memory = {
            name: (tensor[rows] if len(tensor) == count else tensor)[:, columns]
            for name, tensor in workers.memory.items()
        }
        solver.step_(workers.params[rows, columns], grads, memory, lr)


def _average_(workers: Workers, part: int, plan: Plan, solver: Solver, reduce: Reduce) -> None:
    clock = slice(part, part + 1)
    length = exchange_(
        workers.params,
        workers.memory,
        workers.buffers,
        plan.partition.parts[part],
        plan.buffer_parts[part],
        solver=solver,
        sync=Sync(workers.steps[:, clock], workers.lr_sum[:, clock]),
        weights=plan.weights,
        reduce=reduce,
    )
    workers.steps[:, clock] = 0
    workers.lr_sum[:, clock] = 0
    workers.bytes += length * workers.params.element_size()
    workers.messages += 1
