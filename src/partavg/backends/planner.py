"""From policies, as a user names them, to what the training loop needs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from partavg.backends.cutting import Cut, cut_of, draws_columns
from partavg.core.abilities import abilities
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.core.buffer_parts import partition_buffers
from partavg.core.fresh import Fresh
from partavg.core.layout import Layout
from partavg.core.local_columns import LocalColumns, Sharing, sharing
from partavg.core.pace import Pace
from partavg.core.participation import Participation, Swap, swap_
from partavg.core.partition import Partition, Span, merged, without
from partavg.core.plan import Plan
from partavg.core.private import PrivateMean, part_shares
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.workers import Workers
from partavg.sentences import shown

Buffers = Literal["part", "every", "local", "recompute", "frozen"]
Bank = Literal["device", "cpu"]


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes the plan of a schedule, also of those that follow the first."""

    params: Sharing
    statistics: Sharing
    partition: Cut
    buffers: str
    weights: Float[Tensor, "n"]
    participation: Participation | None = None
    pace: Pace | None = None
    delay: int = 0
    seed: int = 0
    rows: slice = field(default_factory=lambda: slice(None))
    swap: Swap = swap_
    aggregate: Aggregate = weighted_sum
    counters: tuple[int, ...] = ()
    mix: float | None = None
    wire: str = "full"
    shared: frozenset[str] = frozenset()
    frozen: tuple[Span, ...] = ()
    """Statistics that are frozen by now."""
    private: PrivateMean | None = None
    """What becomes of messages in a private run."""

    def __call__(self, schedule: Schedule) -> Plan:
        """A plan; a delay that does not fit a shorter interval is shortened."""
        params, count, drawn = self.params, schedule.parts, None
        cut = cut_of(params, self.partition, count, self.seed)
        parts = tuple(map(params.among_all, cut.parts))
        buffers = map(self.statistics.among_all, self._buffer_parts(cut))
        if count > 1 and draws_columns(self.partition):
            drawn = Fresh(merged(chain(*parts)), count, self.seed)
        return Plan(
            schedule,
            Partition(params.layout.size, parts, params.local_spans),
            tuple(without(spans, self.frozen) for spans in buffers),
            self.weights,
            self.participation,
            self.pace,
            min(self.delay, schedule.interval - 1),
            self.rows,
            self.swap,
            self.aggregate,
            self.seed,
            self.counters,
            self.statistics.local_spans,
            self.mix,
            drawn,
            wire=self.wire,
            frozen=self.frozen,
            shared=self.shared,
            private=self.private and replace(self.private, shares=part_shares(cut.sizes)),
        )

    def _buffer_parts(self, partition: Partition) -> tuple[tuple[Span, ...], ...]:
        """The shared columns of buffers that go with each part."""
        if self.buffers not in get_args(Buffers):
            known = ", ".join(get_args(Buffers))
            raise ValueError(f"buffers {shown(self.buffers)} is not known: use {known}")
        if self.buffers in ("part", "frozen"):
            return partition_buffers(partition, self.params.shared, self.statistics.shared).parts
        size = self.statistics.shared.size
        everything = (Span(0, size),) if self.buffers == "every" and size else ()
        return (everything,) * len(partition.parts)


def what_is_shared(
    local: Sequence[str], params: Layout, buffers: Layout, policy: str
) -> tuple[Sharing, Sharing]:
    """What of parameters and buffers is shared; a ValueError if statistics could not be made."""
    found = sharing(local, params, buffers)
    if local and policy == "recompute":
        raise ValueError(
            f"buffers 'recompute' makes statistics for one model of all workers, and with local "
            f"{list(local)} there is none: use part, every or local"
        )
    if found[1].local_spans and policy == "frozen":
        raise ValueError(
            f"buffers 'frozen' gives all workers the same statistics, and local {list(local)} "
            f"keeps some apart: use part, every or local"
        )
    return found


def kept(
    participation: Participation,
    solver: Solver,
    workers: Workers,
    shared: Collection[str],
    local: LocalColumns,
) -> tuple[str, ...]:
    """What clients keep for themselves when they are not active, never what all workers share."""
    common = {f"memory.{name}" for name in shared}
    rows = tuple(name for name in workers.row_names if name not in common)
    if participation.redistribution == "none":
        return rows
    own = tuple(f"memory.{name}" for name in abilities(solver).per_client)
    some = tuple(f"local.{name}" for name in rows if name not in own and local.of(name))
    return own + some + tuple(name for name in rows if name == "local_taken")
