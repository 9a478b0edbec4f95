"""How an attached model meets the others: what is due is averaged, and whoever leaves says why."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import torch

from partavg.backends.current_plan import CurrentPlan
from partavg.backends.distributed.collectives import AllReduce, Collective, Left
from partavg.backends.distributed.connections import Connections
from partavg.backends.distributed.module_row import ModuleRow
from partavg.backends.distributed.shard_groups import ShardGroups
from partavg.backends.distributed.trailer import AVERAGES
from partavg.backends.distributed.watch import Watch
from partavg.backends.lost import RankLost
from partavg.core.arrival import arrive_
from partavg.core.average import collect, deliver_
from partavg.core.exchange import average_, send
from partavg.core.mean import Mean
from partavg.core.partition import Span
from partavg.core.solver import Solver
from partavg.core.workers import arrived


class Meeting:
    """What an averager needs of the other ranks, below what a user calls."""

    def __init__(
        self,
        row: ModuleRow,
        current: CurrentPlan,
        solver: Solver,
        collective: Collective,
        inside: AllReduce | None,
        connections: Connections,
        *,
        watch: Watch,
        shards: ShardGroups | None,
    ) -> None:
        self._row, self._current, self._solver = row, current, solver
        self._collective, self._inside, self._connections = collective, inside, connections
        self._watch, self._shards = watch, shards
        self._heed_trouble()

    @contextmanager
    def _talking(self, step: int, *, deed: int = AVERAGES) -> Iterator[None]:
        """Messages say where this rank is; one that is lost meanwhile is named."""
        for collective in filter(None, (self._inside, self._collective)):
            collective.at(step, deed)
        try:
            with self._connections.naming_lost(f"after step {step}"):
                yield
        except RankLost as lost:
            self._row.pending.clear()
            self._connections.pass_on(lost)
            self._hang_up()  # or those who wait for this rank would not hear of it
            raise

    def _heed_trouble(self) -> None:
        """Let trailers find the words for the trouble of others."""
        collectives = [self._collective, *filter(None, [self._inside])]
        for collective, roll in zip(collectives, self._connections.rolls, strict=False):
            for trailer in collective.trailers:
                trailer.ask = roll.reason_of
        if self._shards and self._inside:
            everyone, ranks = self._connections.rolls[0], self._shards.places_inside()
            self._inside.trailer.ask = lambda place: everyone.reason_of(ranks[place])

    def _look(self) -> None:
        """If the model is not what it was, let all ranks stop at the next message."""
        if self._shards:
            self._shards.reshard_()
        if not (problem := self._watch.look_()):
            return
        trailers = [*self._collective.trailers, *(self._inside.trailers if self._inside else ())]
        if not trailers:
            raise ValueError(problem)
        self._connections.note(problem, f"after step {self._row.step}")
        for trailer in trailers:
            trailer.trouble = problem

    def _meet(self) -> None:
        """Send what the next step would, to no effect: a rank that trains on hears of it."""
        if not self._collective.trailers:
            return
        plan, part = self._current.plan, self._next_part()
        if self._inside:  # the ranks of a machine are the same already
            inside = part if self._shards else 0
            self._mean_inside(plan.partition.parts[inside], plan.buffer_parts[inside])
        sync, buffers = self._row.sync(part, plan.active_fraction), plan.buffer_parts[part]
        arriving, _ = send(
            self._row, part, plan, self._solver, self._collective, sync=sync, buffers=buffers
        )
        arriving()

    def _next_part(self) -> int:
        """The part that is averaged next."""
        schedule = self._current.plan.schedule
        return next(part for step in count(self._row.step + 1) for part in schedule(step))

    def _average_due(self, *, at_once: bool = False) -> None:
        """Average or send; if `at_once`, know what others say in what is on its way."""
        row, plan = self._row, self._current.plan
        for part in plan.schedule(row.step):
            average_(row, part, plan, self._solver, self._collective, delay=plan.delay)
        for message in row.pending.values() if at_once else ():
            message["total"] = arrived(message)
        if row.pending:
            arrive_(row, plan, self._solver)

    def _fetch_memory(self) -> None:
        """Let what the solver remembers of parts that arrive with the next step be on its way."""
        row, plan = self._row, self._current.plan
        late = [k for k, sent in row.pending.items() if sent["arrives"] == row.step + 1]
        due = late if plan.delay else plan.schedule(row.step + 1)
        row.fetch([plan.partition.parts[part] for part in due])

    def _average_inside(self, parts: Iterable[int]) -> None:
        """Give ranks of a machine the same parts, or those of a replica what each has whole."""
        if self._inside:
            plan = self._current.plan
            for part in parts:
                self._mean_inside(plan.partition.parts[part], plan.buffer_parts[part])
            if any(plan.local) and not self._shards:  # a machine's own: its ranks are one worker
                self._mean_inside(*plan.local)
            inside = self._inside.trailer
            if inside.trouble:
                self._connections.note(inside.trouble, f"after step {self._row.step}")
            for trailer in self._collective.trailers:
                trailer.blame, trailer.trouble = inside.blame, inside.trouble

    def _mean_inside(self, spans: Sequence[Span], buffers: Sequence[Span]) -> None:
        assert self._inside
        if self._shards:
            spans, buffers = self._row.whole(spans, buffers)
            if not spans and not buffers:
                return
        plain, sync = Mean(), self._row.sync(0)
        columns = self._row.columns(spans, buffers)
        weights = torch.full_like(self._current.plan.weights, 1 / self._inside.group.size())
        arriving, lengths = collect(
            *columns, {}, spans, solver=plain, sync=sync, weights=weights, reduce=self._inside
        )
        deliver_(*columns, arriving(), lengths, {}, spans, solver=plain, sync=sync)

    def _tell_why(self, error: BaseException) -> None:
        """Leave a word for the others, who wait in vain from now on."""
        self._row.pending.clear()  # what is on its way would keep connections open
        self._connections.leave(error, f"after step {self._row.step}")

    def _hang_up(self) -> None:
        """Close the connections: ranks that wait for this one wake up."""
        left = Left(self._collective)
        for collective in filter(None, (self._inside, self._collective)):
            collective.close()
        self._collective, self._inside = left, None
        self._connections.close()
        if self._shards:
            self._shards.close()
