"""The one training loop: a local step on every worker, then average the parts that are due."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.abilities import abilities, lowest, step_weight
from partavg.core.arrival import arrive_
from partavg.core.exchange import average_
from partavg.core.inputs import Inputs, each
from partavg.core.partition import Span
from partavg.core.plan import Plan
from partavg.core.reduce import Reduce, alone
from partavg.core.settle import redistribute_
from partavg.core.solver import Solver, State, Step
from partavg.core.workers import Workers
from partavg.waiting_threads import look


class Batch(NamedTuple):
    """One mini-batch for every worker, and a key per worker for all that is random in a step."""

    inputs: Inputs
    """Tensors of shape [m, n, …], n samples for each of m workers."""
    targets: Inputs
    """Likewise."""
    keys: Int[Tensor, "m"]

    def each(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The same batch with a function applied to every tensor."""
        inputs, targets = each(function, self.inputs), each(function, self.targets)
        return Batch(inputs, targets, function(self.keys))

    def some(self, rows: slice) -> "Batch":
        """The mini-batches of some workers."""
        return self.each(itemgetter(rows))

    def one(self, row: int) -> tuple[Inputs, Inputs, Int[Tensor, ""]]:
        """The inputs, targets and key of one worker."""
        own = itemgetter(row)
        return each(own, self.inputs), each(own, self.targets), self.keys[row]


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


class Record(NamedTuple):
    """What one iteration did: see `Simulation` for an example."""

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

    Between two records the caller may evaluate, save `workers`, or stop. `Simulation.train` calls
    it with all that it needs; call it yourself with an engine or batches of your own.
    """
    weigh = step_weight(solver)
    for step in range(workers.step + 1, until + 1):
        if plan.participation and plan.participation.changes(step):
            watch("redistribution")
            redistribute_(workers, plan, solver, reduce, plan.participation)
        rate = lr(step)
        losses = []
        watch("data")
        batch = batches(step)
        stepping = plan.stepping(step)
        idle = None if stepping is None else ~stepping.to(workers.params.device)
        moves: Tensor | int = 1 if idle is None else (~idle)[:, None].to(workers.steps.dtype)
        resting = None if idle is None else (idle, workers.buffers[idle])
        workers.taken += moves
        if workers.local_taken is not None:
            workers.local_taken += moves
        watch("engine")
        for rows, values, pieces in engine(workers.params, workers.buffers, batch):
            losses.append(values)
            watch("solver")
            _step_(workers, solver, rows, pieces, rate, stepping, plan)
            watch("engine")
        if resting:
            workers.buffers[resting[0]] = resting[1]
        workers.count_(rate, moves, weigh)
        workers.step = step
        watch("averaging")
        due = plan.schedule(step)
        for part in due:
            average_(workers, part, plan, solver, reduce, delay=plan.delay)
            workers.messages += 1
        if workers.pending:
            arrive_(workers, plan, solver)
        look()
        watch("evaluation")
        yield Record(step, torch.cat(losses), rate, due, workers.bytes, workers.messages)


def _step_(
    workers: Workers,
    solver: Solver,
    rows: slice,
    pieces: Iterable[tuple[slice, Tensor]],
    lr: float,
    stepping: Tensor | None,
    plan: Plan,
) -> None:
    """Take the local step of some rows, or of those of them that take one.

    In local columns it is that of the lowest solver: those above look at averages.
    """
    local: Sequence[Span] = plan.partition.local
    leaving = plan.leaving(workers.step + 1) if workers.behind else None
    runs = [rows] if stepping is None else _runs(stepping, rows)
    if leaving:
        runs = [piece for run in runs for piece in _cut_rows(run, leaving)]
    own_taken = workers.taken if workers.local_taken is None else workers.local_taken
    if lowest(solver) is solver and own_taken is workers.taken:
        local = ()  # all columns step alike
    layout = workers.layout if abilities(solver).whole_tensors else None
    if layout:
        pieces = [_joined(pieces)]
    for piece in pieces:
        for columns, grads, is_local in _cut(*piece, local) if local else ((*piece, False),):
            mine, taken = (lowest(solver), own_taken) if is_local else (solver, workers.taken)
            for run in runs:
                memory = _memory(workers, run, columns, leaving)
                own = grads[run.start - rows.start : run.stop - rows.start]
                whole = layout and layout.between(columns.start, columns.stop)
                mine.step_(workers.params[run, columns], own, memory, Step(lr, taken[run], whole))


def _memory(workers: Workers, run: slice, columns: slice, leaving: slice | None) -> State:
    """What is remembered of some rows: their own, and what they have in common with all."""
    count = len(workers.params)
    common = workers.behind if leaving and leaving.start <= run.start < leaving.stop else {}
    return {
        name: common.get(name, tensor[run] if len(tensor) == count else tensor)[:, columns]
        for name, tensor in workers.memory.items()
    }


def _joined(pieces: Iterable[tuple[slice, Tensor]]) -> tuple[slice, Tensor]:
    """All columns at once, for a solver that must see whole tensors."""
    every = sorted(pieces, key=lambda piece: int(piece[0].start))
    grads = every[0][1] if len(every) == 1 else torch.cat([grads for _, grads in every], 1)
    return slice(0, grads.shape[1]), grads


def _cut(
    piece: slice, grads: Tensor, local: Sequence[Span]
) -> Iterator[tuple[slice, Tensor, bool]]:
    """Columns and gradients cut where local ones begin and end, and whether they are local."""
    ends = {piece.start, piece.stop, *(min(max(x, piece.start), piece.stop) for x in chain(*local))}
    for start, stop in pairwise(sorted(ends)):
        own = any(first <= start < last for first, last in local)
        yield slice(start, stop), grads[:, start - piece.start : stop - piece.start], own


def _cut_rows(run: slice, at: slice) -> list[slice]:
    """A range of rows cut where another begins and ends."""
    inside = (min(max(place, run.start), run.stop) for place in (at.start, at.stop))
    return [slice(*ends) for ends in pairwise(sorted({run.start, run.stop, *inside}))]


def _runs(stepping: Tensor, rows: slice) -> list[slice]:
    """The rows that take a step, as ranges: views of them can be changed in place."""
    count = len(stepping)
    chosen = {row for row in range(*rows.indices(count)) if stepping[row]}
    starts = sorted(row for row in chosen if row - 1 not in chosen)
    stops = sorted(row + 1 for row in chosen if row + 1 not in chosen)
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]
