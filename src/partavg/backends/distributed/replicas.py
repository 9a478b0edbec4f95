"""Sums over replicas that come and go, for torchft's Manager."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from partavg.backends.distributed.collectives import Collective
from partavg.backends.distributed.columns import flat
from partavg.backends.distributed.module_row import ModuleRow
from partavg.backends.distributed.trailer import AVERAGES, NotFinite
from partavg.core.abilities import name_of
from partavg.core.adapt import Adapt
from partavg.core.partition import Span
from partavg.core.reduce import Arriving, LeftOut
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.trial import Trial, shared_names
from partavg.solvers.drift import ANCHOR


@runtime_checkable
class Manager(Protocol):
    """What is needed of torchft's Manager."""

    def register_state_dict_fn(self, key: str, load_state_dict: Any, state_dict: Any) -> None:
        """What a replica that returns is given."""
        ...

    def start_quorum(
        self, allow_heal: bool = True, shrink_only: bool = False, timeout: timedelta | None = None
    ) -> None:
        """Find out who is alive."""
        ...

    def allreduce(
        self, tensor: Tensor, should_quantize: bool = False, reduce_op: Any = dist.ReduceOp.AVG
    ) -> Any:
        """Sum over those alive."""
        ...

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        """Whether all went well."""
        ...


def check_manager(
    *,
    solver: Solver,
    schedule: Schedule,
    delay: int,
    adapt: Adapt | None,
    wire: str,
    fresh: bool,
    group: object,
) -> None:
    """Raise a ValueError for what replicas that come and go cannot do."""
    own = Trial(solver).memory.keys() - shared_names(solver)
    refused = {
        "a group": (group, "the manager has one of its own"),
        f"wire {wire!r}": (
            wire != "full",
            "rounded messages say how a part differs from its last sum, and a replica that "
            "returns does not know that",
        ),
        f"adapt {type(adapt).__name__}": (adapt, "a replica that returns is told only the step"),
        "partition 'fresh'": (fresh, "a replica that returns would never get every column"),
        f"solver {name_of(solver)}": (
            own,
            f"each replica has its own {', '.join(sorted(own))}, and one that returns would have "
            f"lost it",
        ),
        f"delay {delay}": (
            delay and delay >= schedule.gap,
            f"one message at a time can be on its way, and the next part is due after "
            f"{schedule.gap} steps",
        ),
    }
    for what, (given, why) in refused.items():
        if given:
            raise ValueError(f"{what} does not go with a manager: {why}; leave one of them out")


class Replicas(Collective):
    """Averages over the replicas that are alive.

    A replica that returns is told the step, and what solvers remember in common: where that says
    what each part was when it was last averaged, the replica begins there. Else it has a say in a
    part from the time on that it got the part's average from the others, so it is whole after one
    cycle. Where an average fails, because a replica was lost, all go on with what they have.
    """

    room = 1  # for the weight of those who have a say

    def __init__(
        self,
        manager: Manager,
        row: ModuleRow,
        weight: float,
        facts: Mapping[str, object],
        own_buffers: Collection[str] = (),
    ) -> None:
        if getattr(manager, "_use_async_quorum", False):
            raise ValueError(
                "the manager finds its quorum while training goes on, but a replica that returns "
                "must know the step first: make it with use_async_quorum=False"
            )
        self._manager, self._row, self._weight = manager, row, weight
        self._own_buffers = own_buffers
        self._facts = {name: str(value) for name, value in facts.items()}
        self._stale: set[int] = set()
        self._parts = row.steps.shape[1]
        self._open = self._leaving = self._mute = False
        self._last_sent = -1
        manager.register_state_dict_fn("partavg", self._take, self._give)

    def enter(self) -> bool:
        """Meet those alive, who tell this replica their step if it returns."""
        self._open = True
        self._manager.start_quorum()
        if not self._row.step:
            self._open = self._mute = False
            # All must have been told the step before anybody commits, who then tells no more.
            self._manager.allreduce(self._row.params.new_zeros(1)).wait()
            self._manager.should_commit()
        return self._open

    def at(self, step: int, deed: int = AVERAGES) -> None:
        """Nobody may join those who leave."""
        self._leaving = deed != AVERAGES

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """Send, unless this part is still that of an earlier life."""
        if not self._open:
            # Who joins begins with the first part of a step.
            several = self._last_sent == self._row.step
            self._manager.start_quorum(shrink_only=self._leaving or several)
        self._open, self._last_sent = False, self._row.step
        self.count(message[:-1].nbytes)
        sound = bool(message[:-1].sum().isfinite())
        message[-1] = self._weight
        if key in self._stale or self._mute or not sound:
            message.zero_()
        self._mute = False
        work = self._manager.allreduce(message, reduce_op=dist.ReduceOp.SUM)

        def arriving() -> Tensor:
            work.wait()
            done = self._manager.should_commit()
            if not sound:
                raise NotFinite(
                    f"this replica has a number that is not finite after step "
                    f"{self._row.step}: the others did not take it; lower the learning rate"
                )
            if not done or not message[-1]:
                raise LeftOut
            self._stale.discard(-1 if key is None else key)
            return message[:-1] / message[-1]

        return self.timed(arriving)

    def _give(self) -> dict[str, Any]:
        """What a replica that returns must know."""
        row = self._row
        return {
            "step": row.step,
            "facts": self._facts,
            "memory": {name: entry.clone() for name, entry in row.memory.items()},
            "outer_steps": list(row.outer_steps),
            "buffers": [view.clone() for view in self._buffers()],
        }

    @torch.no_grad()
    def _take(self, given: dict[str, Any]) -> None:
        """Go on from where the others are."""
        for name, value in self._facts.items():
            if given["facts"][name] != value:
                raise ValueError(
                    f"this replica has {name} {value}, another has {given['facts'][name]}: all "
                    f"replicas must have the same"
                )
        row = self._row
        if row.store is not None:
            row.store.forget()
        for name, entry in given["memory"].items():
            row.memory[name].copy_(entry)
        row.outer_steps = list(given["outer_steps"])
        if ANCHOR in row.memory:
            self._begin_at_(row.memory[ANCHOR], given["buffers"])
        elif self._open or given["step"] != row.step:
            self._stale = set(range(self._parts))
        row.step = given["step"]

    def _begin_at_(self, anchor: Float[Tensor, "1 d"], buffers: list[Tensor]) -> None:
        """Begin anew at each part's last average: with nothing to say in this averaging."""
        for parameter, (start, stop) in self._row.shared_parameters():
            flat(parameter.detach()).copy_(anchor[0, start:stop])
        for view, given in zip(self._buffers(), buffers, strict=True):
            view.copy_(given)
        self._row.steps.zero_()
        self._row.lr_sum.zero_()
        self._mute = True

    def _buffers(self) -> list[Tensor]:
        """Views of all float buffers but those that are each replica's own."""
        columns = self._row.buffer_columns
        known = zip(columns.layout.names, columns.layout.starts, columns.layout.sizes, strict=True)
        spans = (Span(a, a + n) for name, a, n in known if n and name not in self._own_buffers)
        return [columns.view(span) for span in spans]
