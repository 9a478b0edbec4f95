"""Partial averaging in a user's own training loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from partavg.backends.course import Course
from partavg.backends.distributed.link import AllReduce, Link
from partavg.backends.distributed.local import (
    corrects_after,
    corrects_gradients,
    keeps_apart,
    rate_of,
    without_outer,
)
from partavg.backends.distributed.row import ModuleRow, flat
from partavg.core.average import collect, deliver_, reduced
from partavg.core.exchange import arrive_, average_, settle_
from partavg.core.partition import Partition
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver, Step
from partavg.solvers.sgd import SGD


class Averager:
    """Averages the part that is due after every step of a model; made by `attach`.

    As a context manager it ends with all ranks holding the averaged model. Without one, call
    `consensus` where that is wanted, and `detach` at the end.
    """

    def __init__(
        self,
        row: ModuleRow,
        optimizer: Optimizer | None,
        course: Course,
        solver: Solver,
        link: Link,
        inside: AllReduce | None = None,
    ) -> None:
        self._row, self._optimizer, self._course = row, optimizer, course
        self._solver, self._link, self._inside = solver, link, inside
        self._loss: Tensor | None = None
        course.prepare_(row)
        self._hooks: list[RemovableHandle] = []
        if optimizer:
            if corrects_gradients(solver):
                self._hooks.append(optimizer.register_step_pre_hook(self._before))
            self._hooks.append(optimizer.register_step_post_hook(self._after))

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

    @torch.no_grad()
    def step(self) -> None:
        """Average what is due after a step; an optimizer given to `attach` calls it."""
        row, plan = self._row, self._course.plan
        rate = rate_of(self._optimizer, self._solver)
        if corrects_after(self._solver):
            self._correct(torch.empty_like)
        row.step += 1
        row.taken += 1
        row.steps += 1
        row.lr_sum += rate
        with self._talking():
            self._average_inside()
            for part in plan.schedule(row.step):
                average_(row, part, plan, self._solver, self._link, delay=plan.delay)
            if row.pending:
                arrive_(row, plan, self._solver)
            self._adapt(rate)

    def see(self, loss: Tensor | float) -> None:
        """Tell the loss of the step that comes, where the interval adapts to it."""
        self._loss = torch.as_tensor(loss).detach()

    @torch.no_grad()
    def consensus(self) -> None:
        """Give all ranks the averaged model u; all must call it after the same step."""
        with self._talking(leaving=True):
            arrive_(self._row, self._course.plan, self._solver, at_once=True)
            self._meet()
            settle_(
                self._row,
                self._course.plan,
                without_outer(self._solver),
                self._link,
                all_parts=keeps_apart(self._solver),
            )

    def detach(self) -> None:
        """Let the optimizer be as it was."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint needs beside the model and the optimizer; each rank has its own."""
        return {"row": self._row.state(), "link": self._link.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave on this rank."""
        self._row.load_(state["row"])
        self._course.load(self._row)
        self._link.load(state["link"], self._row.params.device)

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return self._row.step

    @property
    def bytes(self) -> int:
        """Sent by this rank so far, as long as messages are; as much comes back."""
        return self._link.bytes

    @property
    def messages(self) -> int:
        """Sent by this rank so far."""
        return self._link.messages

    @property
    def schedule(self) -> Schedule:
        """Which part is due when, as it is now."""
        return self._course.plan.schedule

    @property
    def partition(self) -> Partition:
        """How the model is cut, as it is now."""
        return self._course.plan.partition

    @torch.no_grad()
    def _before(self, *_: Any) -> None:
        self._correct(_gradients)

    def _after(self, *_: Any) -> None:
        self.step()

    def _correct(self, gradients: Callable[[nn.Parameter], Tensor]) -> None:
        """Let the solver do its part of a step; the optimizer does the rest."""
        row = self._row
        now = Step(rate_of(self._optimizer, self._solver), row.taken + 1)
        for parameter, (a, b) in row.parameters():
            if parameter.grad is not None:
                memory = {name: tensor[:, a:b] for name, tensor in row.memory.items()}
                rows, grads = flat(parameter.detach()), flat(gradients(parameter))
                self._solver.step_(rows[None], grads[None], memory, now)

    @contextmanager
    def _talking(self, *, leaving: bool = False) -> Iterator[None]:
        """Messages say where this rank is; one that is lost meanwhile is named."""
        for link in filter(None, (self._inside, self._link)):
            link.at(self._row.step, leaving=leaving)
        yield

    def _meet(self) -> None:
        """Send what the next step would, to no effect: a rank that trains on hears of it."""
        if self._inside:
            self._mean_inside(0)
        plan = self._course.plan
        part = next(part for step in count(self._row.step + 1) for part in plan.schedule(step))
        spans = plan.partition.parts[part]
        arriving, _ = collect(
            self._row.columns(spans, plan.buffer_parts[part]),
            self._row.memory,
            spans,
            solver=self._solver,
            sync=self._row.sync(part, plan.share),
            weights=plan.weights,
            reduce=self._link,
            key=part,
        )
        arriving()

    def _average_inside(self) -> None:
        """Give all ranks of the machine the same model."""
        if self._inside:
            for part in range(self.schedule.parts):
                self._mean_inside(part)

    def _mean_inside(self, part: int) -> None:
        assert self._inside
        plan, plain, sync = self._course.plan, SGD(), self._row.sync(part)
        spans = plan.partition.parts[part]
        columns = self._row.columns(spans, plan.buffer_parts[part])
        weights = torch.full_like(plan.weights, 1 / self._inside.group.size())
        arriving, lengths = collect(
            columns, {}, spans, solver=plain, sync=sync, weights=weights, reduce=self._inside
        )
        deliver_(columns, torch.split(arriving(), lengths), {}, spans, solver=plain, sync=sync)

    def _adapt(self, rate: float) -> None:
        adapt = self._course.adapt
        if adapt and adapt.heeds_loss:
            if self._loss is None:
                raise ValueError(
                    f"{type(adapt).__name__} goes by the loss: call averager.see(loss) before "
                    f"every step"
                )
            own = self._loss.to(self._row.params) * self._course.plan.weights
            self._course.see(self._row, reduced(self._link, own)[0], rate)
            self._loss = None
        self._course.change_(self._row, self._solver, rate, self._link)


def _gradients(parameter: nn.Parameter) -> Tensor:
    """The gradient, lying in memory as the parameter does."""
    assert parameter.grad is not None
    if parameter.grad.stride() != parameter.stride():
        parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
    return parameter.grad
