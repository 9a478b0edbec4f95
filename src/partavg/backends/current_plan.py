"""The plan of training as it is now, and how it changes on the way."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from partavg.core.adapt import Adapt, is_warm_up
from partavg.core.aggregate import weighted_sum
from partavg.core.plan import Plan
from partavg.core.reduce import Reduce, alone
from partavg.core.schedule import Schedule
from partavg.core.settle import settle_
from partavg.core.solver import Solver
from partavg.core.workers import Workers, upgrade_


class CurrentPlan:
    """The plan as it is now; an Adapt policy lets others follow it at the ends of cycles."""

    def __init__(
        self, given: Schedule, adapt: Adapt | None, planner: Callable[[Schedule], Plan]
    ) -> None:
        self._given, self.adapt, self._planner = given, adapt, planner
        self.plan = self._planned(adapt.first(given) if adapt else given)

    def _planned(self, schedule: Schedule) -> Plan:
        """The plan of a schedule; what comes before local steps is plain synchronous averaging."""
        plan = self._planner(schedule)
        if not is_warm_up(self.adapt, schedule, self._given):
            return plan
        return replace(plan, mix=None, resting=True)

    def prepare_(self, workers: Workers) -> None:
        """Let exchanges take note of what the policy wants to know."""
        if self.adapt and self.adapt.measures:
            workers.notes["apart"] = workers.steps.new_zeros(self.plan.schedule.parts)
            workers.notes["sizes"] = list(self.plan.partition.sizes)

    def see(self, workers: Workers, loss: Tensor, lr: float) -> None:
        """A step was taken with this mean loss and learning rate."""
        if self.adapt:
            self.adapt.see(workers.notes, loss, lr)

    def cycle_end(self, step: int) -> int:
        """The step that ends the cycle which comes after a step."""
        schedule = self.plan.schedule
        return step + schedule.interval - (step - schedule.start) % schedule.interval

    def change_(self, workers: Workers, solver: Solver, lr: float, reduce: Reduce = alone) -> None:
        """At the end of a cycle, let another schedule follow where the policy says so."""
        now, step = self.plan.schedule, workers.step
        if not self.adapt or not now.cycle_ends(step):
            return
        follows = self.adapt.next(workers.notes, step, now, self._given, lr)
        if follows == now:
            return
        if (follows.interval, follows.parts) != (now.interval, now.parts):
            settle_(workers, self.plan, solver, reduce)
            workers.recut(follows.parts)
        self.plan = self._planned(follows)
        keys = ("interval", "parts", "start", "multiples", "offsets")
        workers.notes["schedule"] = {key: getattr(follows, key) for key in keys}

    def follow(self, planner: Callable[[Schedule], Plan]) -> Plan:
        """Let another planner make the plan of the same schedule; the plan until now."""
        before, self._planner = self.plan, planner
        self.plan = self._planned(before.schedule)
        return before

    def load(self, workers: Workers) -> None:
        """Take up the plan that workers had when they were saved."""
        now = workers.notes.get("schedule")
        first = self.adapt.first(self._given) if self.adapt else self._given
        self.plan = self._planned(replace(self._given, **now) if now else first)
        upgrade_(workers, self.plan.partition.parts)
        if self.plan.aggregate is not weighted_sum and workers.common is None:
            raise ValueError(
                "what is loaded was saved without an aggregate of its own, which must know what "
                "workers had in common: go on without one, or begin again"
            )
