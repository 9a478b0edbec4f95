"""The plan of a rank: the one that all have in common, cut to what is held here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partavg.backends.cutting import Cut
from partavg.backends.distributed.module_row import ModuleRow
from partavg.backends.planner import Planner
from partavg.core.aggregate import Aggregate
from partavg.core.arguments import check_kind
from partavg.core.local_columns import Sharing
from partavg.core.partition import Partition
from partavg.core.plan import Plan
from partavg.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class RankPlanner:
    """Makes plans whose spans each lie within one tensor of the model."""

    row: ModuleRow
    sharing: tuple[Sharing, Sharing]
    partition: Cut
    buffers: str
    delay: int
    seed: int
    aggregate: Aggregate
    mix: float | None
    weight: float = 1.0
    """Of this rank, where those of all sum to 1."""

    def whole(self, schedule: Schedule) -> Plan:
        """The plan of the whole model, which all ranks have in common."""
        return Planner(
            *self.sharing,
            self.partition,
            self.buffers,
            self.row.params.new_full((1,), self.weight),
            delay=self.delay,
            seed=self.seed,
            aggregate=self.aggregate,
            mix=self.mix,
        )(schedule)

    def __call__(self, schedule: Schedule) -> Plan:
        """The plan of what is held here."""
        params, buffers = self.row.param_columns, self.row.buffer_columns
        plan = self.whole(schedule)
        cut, fresh = plan.partition, plan.fresh
        parts = tuple(map(params.cut, cut.parts))
        return replace(
            plan,
            partition=Partition(params.held.size, parts, params.cut(cut.local)),
            buffer_parts=tuple(map(buffers.cut, plan.buffer_parts)),
            local_buffers=buffers.cut(plan.local_buffers),
            fresh=fresh and replace(fresh, spans=params.cut(fresh.spans)),
        )


def schedule_of(
    interval: int,
    parts: int | None,
    partition: Cut,
    offsets: Sequence[int] | None,
    shuffle: int | None,
) -> Schedule:
    """When which part is due: as many parts as somebody says, or as there are steps."""
    check_kind("offsets", offsets, list | tuple | None, "a step for each part, like [1, 3]")
    if parts is None and offsets is not None:
        parts = len(offsets)
    if parts is None:
        parts = len(partition) if isinstance(partition, list | tuple) else interval
    return Schedule(interval, parts, shuffle, offsets=tuple(offsets or ()))
