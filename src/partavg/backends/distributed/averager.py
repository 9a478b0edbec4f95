"""Partial averaging in a user's own training loop."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from partavg.backends.current_plan import CurrentPlan
from partavg.backends.distributed.collectives import AllReduce, Collective
from partavg.backends.distributed.connections import Connections
from partavg.backends.distributed.looking import Looking
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
from partavg.backends.distributed.trailer import AVERAGES, LEAVES
from partavg.backends.distributed.uneven import Uneven
from partavg.backends.distributed.watch import Watch
from partavg.core.abilities import abilities, step_weight
from partavg.core.partition import Partition
from partavg.core.reduce import reduced
from partavg.core.schedule import Schedule
from partavg.core.settle import settle_
from partavg.core.solver import Solver
from partavg.waiting_threads import look


class Averager(Looking):
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
        super().__init__(
            row, current, solver, collective, inside, connections, watch=watch, shards=shards
        )
        self._optimizers, self._uneven, self._settings = optimizers, uneven, settings or {}
        self._abilities, self._weigh = abilities(solver), step_weight(solver)
        self._loss: Tensor | None = None
        self._ranks = [len(roll.facts) for roll in connections.rolls]
        self._skipped: Moves = 0
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
        look()
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

    def detach(self) -> None:
        """Let the optimizer be as it was, and close all that `attach` opened; again is no harm."""
        self._steps.close()
        if self._uneven:
            self._uneven.close()
        self._connections.note("", f"after step {self._row.step}")
        self._hang_up()

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
