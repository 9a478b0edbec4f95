"""Partial averaging in a user's own training loop."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from partavg.backends.current_plan import CurrentPlan
from partavg.backends.distributed.collectives import AllReduce, Collective, Left
from partavg.backends.distributed.connections import Connections
from partavg.backends.distributed.evaluating import (
    average_buffers_,
    average_model_,
    average_module_,
    check_outer,
    own_model_kept,
    state_of,
    take_outer_model_,
)
from partavg.backends.distributed.module_row import ModuleRow
from partavg.backends.distributed.on_optimizer import (
    correct_gradients_,
    correct_parameters_,
    rate_of,
)
from partavg.backends.distributed.optimizers import Moves, Steps
from partavg.backends.distributed.other_ranks import go_on_with_others_
from partavg.backends.distributed.saved import check_state
from partavg.backends.distributed.shard_groups import ShardGroups
from partavg.backends.distributed.sharded_state import pack, unpack
from partavg.backends.distributed.times import Times
from partavg.backends.distributed.trailer import AVERAGES, DEEDS, LEAVES
from partavg.backends.distributed.uneven import Uneven
from partavg.backends.distributed.watch import Watch
from partavg.backends.lost import RankLost
from partavg.core.abilities import abilities, step_weight
from partavg.core.arrival import arrive_
from partavg.core.average import collect, deliver_
from partavg.core.exchange import average_, send
from partavg.core.mean import Mean
from partavg.core.partition import Partition, Span
from partavg.core.reduce import reduced
from partavg.core.schedule import Schedule
from partavg.core.settle import settle_
from partavg.core.solver import Solver
from partavg.core.workers import arrived


class Averager:
    """Averages the part that is due after every step of a model; made by `attach`.

    As a context manager it ends with all ranks holding the averaged model. Without one, call
    `consensus` where that is wanted, and `detach` at the end.
    """

    def __init__(
        self,
        row: ModuleRow,
        optimizers: Sequence[Optimizer],
        current: CurrentPlan,
        solver: Solver,
        collective: Collective,
        inside: AllReduce | None,
        connections: Connections,
        *,
        watch: Watch,
        scaler: GradScaler | None = None,
        settings: Mapping[str, str] | None = None,
        uneven: Uneven | None = None,
        shards: ShardGroups | None = None,
    ) -> None:
        self._uneven, self._shards = uneven, shards
        self._row, self._optimizers, self._current = row, optimizers, current
        self._solver, self._collective, self._inside = solver, collective, inside
        self._connections, self._watch, self._settings = connections, watch, settings or {}
        self._abilities, self._weigh = abilities(solver), step_weight(solver)
        self._loss: Tensor | None = None
        self._borrowed = False
        self._ranks = [len(roll.facts) for roll in connections.rolls]
        self._skipped: Moves = 0
        self._heed_trouble()
        self._times = Times(row.params.device, list(filter(None, (collective, inside))))
        current.prepare_(row)
        corrects = self._abilities
        self._steps = Steps(
            optimizers,
            self._step,
            before=self._correct_gradients if corrects.corrects_gradients else None,
            after=self._correct_parameters if corrects.corrects_parameters else None,
            scaler=scaler,
        )
        if collective.enter():
            with torch.no_grad():
                self._average_due()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self._tell_why(error)
            else:
                self.consensus()
        except BaseException as late:
            self._tell_why(late)
            raise
        finally:
            self.detach()

    def step(self) -> None:
        """Average what is due after a step, for those who did not give `attach` the optimizer."""
        if self._steps:
            raise ValueError(
                "the optimizer that attach was given averages after its steps already: leave "
                "averager.step() out, or attach without the optimizer"
            )
        self._step()

    @torch.no_grad()
    def _step(self, moves: Moves = 1) -> None:
        self._check_own()
        row = self._row
        rate = rate_of(self._optimizers, self._solver, self._abilities)
        if self._uneven:
            self._uneven.check_turn(row.step + 1)
        with self._talking(row.step + 1):
            row.step += 1
            if isinstance(moves, Tensor):
                moves = moves.to(row.steps).view(1, 1)
            row.taken += moves
            row.count_(rate, moves, weigh=self._weigh)
            self._skipped = self._skipped + 1 - moves
            if self.schedule.cycle_ends(row.step):
                self._look()
            parts = range(self.schedule.parts)
            self._average_inside(self.schedule(row.step) if self._shards else parts)
            self._average_due()
            self._adapt(rate)
        self._fetch_memory()

    @torch.no_grad()
    def catch_up(self) -> None:
        """Take part in the averagings that come before this rank's next step, where it has a pace.

        The model does that by itself when it is called where gradients are wanted.
        """
        while self._uneven and not self._uneven.steps_at(self._row.step + 1):
            self._rest()

    def _rest(self, *, deed: int = AVERAGES) -> None:
        """Average what is due after a step that only others take."""
        with self._talking(self._row.step + 1, deed=deed):
            self._row.step += 1
            self._average_due(at_once=deed == LEAVES)
            self._adapt(rate_of(self._optimizers, self._solver, self._abilities))
        self._fetch_memory()

    def see(self, loss: Tensor | float) -> None:
        """Tell the loss of the step that comes, where the interval adapts to it."""
        self._loss = torch.as_tensor(loss).detach()

    @torch.no_grad()
    def consensus(self) -> None:
        """Give all ranks the averaged model u, whatever was done to it; all must call it together.

        What nobody averages, frozen parameters and whole numbers, becomes that of the first rank.
        """
        self._check_own()
        self._steps.check_updated()
        if self._uneven:
            self._uneven.join(self._row, partial(self._rest, deed=LEAVES))
        with self._talking(self._row.step, deed=LEAVES):
            self._look()
            if not self._uneven:  # where they have met already
                self._meet()
            plan, collective = self._current.plan, self._collective
            if self._shards:
                self._average_inside(range(plan.schedule.parts))
            alike = self._watch.parts_alike(plan, groups := self._connections.groups)
            settle_(self._row, plan, self._solver, collective, plainly=True, alike=alike)
            self._watch.rest_alike_(groups)
            for trailer in collective.trailers:
                trailer.catch_up()

    @contextmanager
    def averaged(self, *, outer: bool = False) -> Iterator[None]:
        """Hold the averaged model u for a while, then again what the rank had, to the bit.

        For evaluation: training goes on as if nothing had been. If `outer`, the parameters are
        those from which the outer steps of a solver like DiLoCo go on. What is local stays the
        rank's own. All ranks must enter after the same step; each keeps a copy of its model.
        """
        row, plan = self._row, self._current.plan
        self._check_own()
        if outer:
            check_outer(self._solver, row)
        with self._sharded(), own_model_kept(row, plan):
            self._borrowed = True
            try:
                with torch.no_grad():
                    self._borrow_(outer=outer)
                yield
            finally:
                self._borrowed = False

    @contextmanager
    def _sharded(self) -> Iterator[None]:
        """The model changes in here: let FSDP keep no whole parameters of before, nor from here."""
        if self._shards:
            self._shards.reshard_()
        try:
            yield
        finally:
            if self._shards:
                self._shards.reshard_()

    def _borrow_(self, *, outer: bool) -> None:
        row, plan = self._row, self._current.plan
        if outer:
            take_outer_model_(row, plan)
            if not any(plan.buffer_parts):
                return
        deed = "asks for the outer model" if outer else "asks for the averaged model"
        with self._asking(deed):
            if self._shards:
                self._average_inside(range(plan.schedule.parts))
            (average_buffers_ if outer else average_model_)(row, plan, self._collective)

    def consensus_state_dict(self, *, cpu: bool = False) -> dict[str, Any]:
        """The model's state dict with the averaged values, on every rank; nothing else changes.

        What is not averaged is as this rank has it. Two copies of the model are needed for a
        moment, one where the result is made on the `cpu`.
        """
        with self.averaged():
            return state_of(self._row.module, cpu=cpu)

    @torch.no_grad()
    def average_(self, module: nn.Module) -> None:
        """Average another module over the ranks, for example an EMA copy of the model.

        Its parameters and float buffers, trained or not, but for those that are local by name.
        """
        self._check_own()
        with self._asking("averages another module"):
            average_module_(module, self._row, self._current.plan, self._collective)

    def _check_own(self) -> None:
        if self._borrowed:
            raise ValueError(
                "the model is the averaged one inside `with averager.averaged():`: train, "
                "average and ask for the consensus outside"
            )

    @contextmanager
    def _asking(self, deed: str) -> Iterator[None]:
        """Meet the others, who must ask for the same, and leave no trace in rounded messages."""
        with (
            self._talking(self._row.step, deed=DEEDS.index(deed)),
            self._collective.aside(self._next_part()),
        ):
            self._meet()
            yield

    def detach(self) -> None:
        """Let the optimizer be as it was, and close all that `attach` opened; again is no harm."""
        self._steps.close()
        if self._uneven:
            self._uneven.close()
        self._connections.note("", f"after step {self._row.step}")
        self._hang_up()

    def _hang_up(self) -> None:
        """Close the connections: ranks that wait for this one wake up."""
        left = Left(self._collective)
        for collective in filter(None, (self._inside, self._collective)):
            collective.close()
        self._collective, self._inside = left, None
        self._connections.close()
        if self._shards:
            self._shards.close()

    def _tell_why(self, error: BaseException) -> None:
        """Leave a word for the others, who wait in vain from now on."""
        self._row.pending.clear()  # what is on its way would keep connections open
        self._connections.leave(error, f"after step {self._row.step}")

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint needs beside the model and the optimizer; each rank has its own."""
        # Checkpoints of 0.1 call what a collective keeps its link.
        own = {"row": self._row.state(), "link": self._collective.state()}
        known = {"settings": dict(self._settings), "ranks": self._ranks}
        state = {**own, **known, "skipped": self.skipped}
        return pack(state, self._row, self._shards) if self._shards else state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave on this rank.

        If there were n other ranks, load what rank i mod n saved on rank i, the model before this:
        then all ranks begin with the average of the models that they loaded.
        """
        row = self._row
        if self._shards:
            self._shards.reshard_()
            state = unpack(state, row, self._shards)
        check_state(state, self._settings, row)
        row.load_(state["row"])
        self._current.load(row)
        self._skipped = state.get("skipped", 0)
        if state.get("ranks", self._ranks) == self._ranks:
            self._collective.load(state["link"], row.params.device)
        else:
            with self._asking("loads the state of other ranks"):
                go_on_with_others_(row, self._current.plan, self._solver, self._collective)

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return self._row.step

    @steps.setter
    def steps(self, steps: int) -> None:
        self._row.step = steps

    @property
    def skipped(self) -> int:
        """Those of them that a GradScaler skipped on this rank."""
        return int(self._skipped)

    @property
    def bytes(self) -> int:
        """Sent by this rank so far, as long as messages are; as much comes back."""
        return self._collective.bytes

    @property
    def messages(self) -> int:
        """Sent by this rank so far."""
        return self._collective.messages

    def stats(self) -> dict[str, float]:
        """Steps, bytes, messages and seconds since `attach`, for any logger.

        Of this rank `seconds/compute`, `seconds/waiting` for others and `seconds/exchange`, which
        is the rest of the time that training stood still; of each rank how long it computed, and
        was ready before the slowest.
        """
        known = {
            "steps": self.steps,
            "skipped_steps": self.skipped,
            "bytes": self.bytes,
            "messages": self.messages,
        }
        return {name: float(value) for name, value in (known | self._times.seconds()).items()}

    @property
    def schedule(self) -> Schedule:
        """Which part is due when, as it is now."""
        return self._current.plan.schedule

    @property
    def partition(self) -> Partition:
        """How the model is cut, as it is now."""
        return self._current.plan.partition

    @torch.no_grad()
    def _correct_gradients(self, optimizer: Optimizer) -> None:
        rate_of(self._optimizers, self._solver, self._abilities)
        correct_gradients_(self._row, self._solver, optimizer)

    @torch.no_grad()
    def _correct_parameters(self, optimizer: Optimizer) -> None:
        rate_of(self._optimizers, self._solver, self._abilities)
        correct_parameters_(self._row, self._solver, optimizer)

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

    def _adapt(self, rate: float) -> None:
        adapt = self._current.adapt
        if adapt and adapt.heeds_loss:
            if self._loss is None:
                raise ValueError(
                    f"{type(adapt).__name__} goes by the loss: call averager.see(loss) before "
                    f"every step"
                )
            own = self._loss.to(self._row.params) * self._current.plan.weights
            if self._shards and self._inside:
                own = reduced(self._inside, own / self._inside.group.size())
            self._current.see(self._row, reduced(self._collective, own)[0], rate)
            self._loss = None
        self._current.change_(self._row, self._solver, rate, self._collective)
