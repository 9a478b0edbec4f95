"""The one training loop: a local step on every worker, then average the parts that are due."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from partavg.core.average import Reduce, alone, exchange_
from partavg.core.participation import Participation
from partavg.core.partition import Partition, Span
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver, Sync
from partavg.core.workers import Workers


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
    weights: Float[Tensor, "n"]
    """p_i of the workers held here; they sum to 1 over all workers."""
    participation: Participation | None = None
    """Which clients are active, where not all are: `weights` are then those of all clients."""

    def weights_at(self, step: int) -> Float[Tensor, "m"]:
        """p_i of the workers that train at a step."""
        if self.participation is None:
            return self.weights
        active = self.weights[torch.tensor(self.participation(step), device=self.weights.device)]
        return active / active.sum()

    def __post_init__(self) -> None:
        counts = self.schedule.parts, len(self.partition.parts), len(self.buffer_parts)
        if len(set(counts)) > 1:
            raise ValueError(
                f"the schedule has {counts[0]} parts, the partition {counts[1]} and the buffers "
                f"{counts[2]}: they must be the same"
            )


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


Watch = Callable[[str], None]
"""Called when a phase begins: redistribution, data, engine and solver (perhaps many times in turn),
averaging, and evaluation, which is all that the caller does between two steps."""


def unwatched(phase: str) -> None:
    """The Watch of a caller that does not care."""


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
    watch: Watch = unwatched,
) -> Iterator[Record]:
    """Train up to step `until`, in place; yield a record after each iteration.

    Between two records the caller may evaluate, save `workers`, or stop.
    """
    for step in range(workers.step + 1, until + 1):
        if plan.participation and plan.participation.changes(step):
            watch("redistribution")
            _redistribute_(workers, plan, solver, reduce, plan.participation, step)
        rate = lr(step)
        losses = []
        watch("data")
        batch = batches(step)
        watch("engine")
        for rows, values, pieces in engine(workers.params, workers.buffers, batch):
            losses.append(values)
            watch("solver")
            _step_(workers, solver, rows, pieces, rate)
            watch("engine")
        workers.steps += 1
        workers.lr_sum += rate
        workers.step = step
        watch("averaging")
        due = plan.schedule(step)
        weights = plan.weights_at(step)
        for part in due:
            _average_(workers, part, plan.buffer_parts[part], plan, weights, solver, reduce)
            workers.messages += 1
        watch("evaluation")
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


def _average_(
    workers: Workers,
    part: int,
    buffers: tuple[Span, ...],
    plan: Plan,
    weights: Tensor,
    solver: Solver,
    reduce: Reduce,
) -> None:
    clock = slice(part, part + 1)
    length = exchange_(
        workers.params,
        workers.memory,
        workers.buffers,
        plan.partition.parts[part],
        buffers,
        solver=solver,
        sync=Sync(workers.steps[:, clock], workers.lr_sum[:, clock]),
        weights=weights,
        reduce=reduce,
    )
    workers.steps[:, clock] = 0
    workers.lr_sum[:, clock] = 0
    workers.bytes += length * workers.params.element_size()


def _redistribute_(
    workers: Workers,
    plan: Plan,
    solver: Solver,
    reduce: Reduce,
    participation: Participation,
    step: int,
) -> None:
    """Give models to the clients that are active from this step on.

    What was averaged after the step before is known to all already and costs nothing again.
    """
    due = plan.schedule(step - 1)
    rest = [part for part in range(len(plan.partition.parts)) if part not in due]
    known = {span for part in due for span in plan.buffer_parts[part]}
    before = workers.bytes
    if participation.keeps:
        leaving, coming = (
            torch.tensor(participation(k), device=workers.params.device) for k in (step - 1, step)
        )
        workers.swap_(leaving, coming)
    elif participation.redistribution == "average":
        weights = plan.weights_at(step - 1)
        for part in rest:
            buffers = tuple(span for span in plan.buffer_parts[part] if span not in known)
            known.update(buffers)
            _average_(workers, part, buffers, plan, weights, solver, reduce)
    elif participation.redistribution == "permute":
        # The models stay in their rows: it is the data that each row reads that changes.
        columns = sum(plan.partition.sizes[part] for part in rest)
        columns += workers.buffers.shape[1] - sum(stop - start for start, stop in known)
        workers.bytes += columns * workers.params.element_size()
    workers.messages += workers.bytes > before
