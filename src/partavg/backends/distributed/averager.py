"""Partial averaging in a user's own training loop."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from partavg.backends.current_plan import CurrentPlan
from partavg.backends.distributed.collectives import AllReduce, Collective, Left
from partavg.backends.distributed.module_row import ModuleRow
from partavg.backends.distributed.on_optimizer import (
    correct_gradients_,
    correct_parameters_,
    rate_of,
)
from partavg.backends.distributed.shard_groups import ShardGroups
from partavg.backends.distributed.sharded_state import pack, unpack
from partavg.backends.rank_failure import RollCall
from partavg.core.abilities import abilities, step_weight
from partavg.core.average import collect, deliver_, reduced
from partavg.core.exchange import arrive_, average_, send, settle_
from partavg.core.mean import Mean
from partavg.core.partition import Partition, Span
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver


class Averager:
    """Averages the part that is due after every step of a model; made by `attach`.

    As a context manager it ends with all ranks holding the averaged model. Without one, call
    `consensus` where that is wanted, and `detach` at the end.
    """

    def __init__(
        self,
        row: ModuleRow,
        optimizer: Optimizer | None,
        current: CurrentPlan,
        solver: Solver,
        collective: Collective,
        inside: AllReduce | None = None,
        rolls: Sequence[RollCall] = (),
        shards: ShardGroups | None = None,
    ) -> None:
        self._row, self._optimizer, self._current = row, optimizer, current
        self._solver, self._collective, self._inside, self._rolls = (
            solver,
            collective,
            inside,
            rolls,
        )
        self._shards = shards
        self._abilities, self._weigh = abilities(solver), step_weight(solver)
        self._loss: Tensor | None = None
        current.prepare_(row)
        self._hooks: list[RemovableHandle] = []
        if optimizer:
            if self._abilities.corrects_gradients:
                self._hooks.append(optimizer.register_step_pre_hook(self._before))
            self._hooks.append(optimizer.register_step_post_hook(self._after))
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
            if error is None:
                self.consensus()
        finally:
            self.detach()

    def step(self) -> None:
        """Average what is due after a step, for those who did not give `attach` the optimizer."""
        if self._hooks:
            raise ValueError(
                "the optimizer that attach was given averages after its steps already: leave "
                "averager.step() out, or attach without the optimizer"
            )
        self._step()

    @torch.no_grad()
    def _step(self) -> None:
        row = self._row
        rate = self._rate()
        if self._abilities.corrects_parameters:
            correct_parameters_(row, self._solver, rate)
        row.step += 1
        row.taken += 1
        row.count_(rate, weigh=self._weigh)
        with self._talking():
            parts = range(self.schedule.parts)
            self._average_inside(self.schedule(row.step) if self._shards else parts)
            self._average_due()
            self._adapt(rate)

    def see(self, loss: Tensor | float) -> None:
        """Tell the loss of the step that comes, where the interval adapts to it."""
        self._loss = torch.as_tensor(loss).detach()

    @torch.no_grad()
    def consensus(self) -> None:
        """Give all ranks the averaged model u; all must call it after the same step."""
        if self._shards:
            self._shards.reshard_()
        with self._talking(leaving=True):
            self._meet()
            plan = self._current.plan
            if self._shards:
                self._average_inside(range(plan.schedule.parts))
            settle_(self._row, plan, self._solver, self._collective, plainly=True)

    def detach(self) -> None:
        """Let the optimizer be as it was, and the process groups go.

        Torch's threads end with the last one who holds a group; those that outlive Python abort it.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for roll in self._rolls:
            roll.close()
        if self._shards:
            self._shards.close()
        self._collective, self._inside, self._rolls = Left(self._collective), None, ()

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint needs beside the model and the optimizer; each rank has its own."""
        # Checkpoints of 0.1 call what a collective keeps its link.
        state = {"row": self._row.state(), "link": self._collective.state()}
        return pack(state, self._row, self._shards) if self._shards else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave on this rank."""
        alone = False
        if self._shards:
            self._shards.reshard_()
            state, own = unpack(state, self._row, self._shards)
            alone = not own
        self._row.load_(state["row"])
        self._current.load(self._row)
        self._collective.load(state["link"], self._row.params.device)

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return self._row.step

    @steps.setter
    def steps(self, steps: int) -> None:
        self._row.step = steps

    @property
    def bytes(self) -> int:
        """Sent by this rank so far, as long as messages are; as much comes back."""
        return self._collective.bytes

    @property
    def messages(self) -> int:
        """Sent by this rank so far."""
        return self._collective.messages

    @property
    def schedule(self) -> Schedule:
        """Which part is due when, as it is now."""
        return self._current.plan.schedule

    @property
    def partition(self) -> Partition:
        """How the model is cut, as it is now."""
        return self._current.plan.partition

    @torch.no_grad()
    def _before(self, *_: Any) -> None:
        correct_gradients_(self._row, self._solver, self._rate())

    def _rate(self) -> float:
        """The learning rate of the step that is taken."""
        return rate_of(self._optimizer, self._solver, self._abilities)

    def _after(self, *_: Any) -> None:
        self._step()

    @contextmanager
    def _talking(self, *, leaving: bool = False) -> Iterator[None]:
        """Messages say where this rank is; one that is lost meanwhile is named."""
        step = self._row.step
        for collective in filter(None, (self._inside, self._collective)):
            collective.at(step, leaving=leaving)
        with ExitStack() as stack:
            for roll in self._rolls:
                stack.enter_context(roll.naming_lost(f"after step {step}"))
            yield

    def _meet(self) -> None:
        """Send what the next step would, to no effect: a rank that trains on hears of it."""
        if not self._collective.trailers:
            return
        plan = self._current.plan
        part = next(part for step in count(self._row.step + 1) for part in plan.schedule(step))
        if self._inside:  # the ranks of a machine are the same already
            inside = part if self._shards else 0
            self._mean_inside(plan.partition.parts[inside], plan.buffer_parts[inside])
        sync, buffers = self._row.sync(part, plan.active_fraction), plan.buffer_parts[part]
        arriving, _ = send(
            self._row, part, plan, self._solver, self._collective, sync=sync, buffers=buffers
        )
        arriving()

    def _average_due(self) -> None:
        row, plan = self._row, self._current.plan
        for part in plan.schedule(row.step):
            average_(row, part, plan, self._solver, self._collective, delay=plan.delay)
        if row.pending:
            arrive_(row, plan, self._solver)

    def _average_inside(self, parts: Iterable[int]) -> None:
        """Give ranks of a machine the same parts, or those of a replica what each has whole."""
        if self._inside:
            plan = self._current.plan
            for part in parts:
                self._mean_inside(plan.partition.parts[part], plan.buffer_parts[part])
            if any(plan.local) and not self._shards:  # a machine's own: its ranks are one worker
                self._mean_inside(*plan.local)
            for trailer in self._collective.trailers:
                trailer.blame = self._inside.trailer.blame

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
