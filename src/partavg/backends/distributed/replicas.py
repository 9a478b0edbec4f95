"""Sums over replicas that come and go, for torchft's Manager."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from partavg.backends.distributed.collectives import Collective
from partavg.backends.distributed.trailer import NotFinite
from partavg.core.average import Arriving
from partavg.core.workers import Workers


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


class Replicas(Collective):
    """Averages over the replicas that are alive.

    A replica that returns is told the step only. It has a say in a part from the time on that it
    got the part's average from the others, so it is whole after one cycle. Where an average fails,
    because a replica was lost, all go on with what they have.
    """

    room = 1  # for the weight of those who have a say

    def __init__(
        self, manager: Manager, workers: Workers, weight: float, facts: Mapping[str, object]
    ) -> None:
        if getattr(manager, "_use_async_quorum", False):
            raise ValueError(
                "the manager finds its quorum while training goes on, but a replica that returns "
                "must know the step first: make it with use_async_quorum=False"
            )
        self._manager, self._workers, self._weight = manager, workers, weight
        self._facts = {name: str(value) for name, value in facts.items()}
        self._stale: set[int] = set()
        self._parts = workers.steps.shape[1]
        self._open = self._leaving = False
        manager.register_state_dict_fn("partavg", self._take_step, self._give_step)

    def enter(self) -> bool:
        """Meet those alive, who tell this replica their step if it returns."""
        self._open = True
        self._manager.start_quorum()
        if not self._workers.step:
            self._open = False
            # All must have been told the step before anybody commits, who then tells no more.
            self._manager.allreduce(self._workers.params.new_zeros(1)).wait()
            self._manager.should_commit()
        return self._open

    def at(self, step: int, *, leaving: bool = False) -> None:
        """Nobody may join those who leave."""
        self._leaving = leaving

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """Send, unless this part is still that of an earlier life."""
        if not self._open:
            self._manager.start_quorum(shrink_only=self._leaving)
        self._open = False
        own = message[:-1] / self._weight
        sound = bool(own.sum().isfinite())
        message[-1] = self._weight
        if key in self._stale or not sound:
            message.zero_()
        self.count(own.nbytes)
        work = self._manager.allreduce(message, reduce_op=dist.ReduceOp.SUM)

        def arriving() -> Tensor:
            work.wait()
            done = self._manager.should_commit()
            if not sound:
                raise NotFinite(
                    f"this replica has a number that is not finite after step "
                    f"{self._workers.step}: the others did not take it; lower the learning rate"
                )
            if not done or not message[-1]:
                return own
            self._stale.discard(-1 if key is None else key)
            return message[:-1] / message[-1]

        return arriving

    def _give_step(self) -> dict[str, Any]:
        return {"step": self._workers.step, "facts": self._facts}

    def _take_step(self, given: dict[str, Any]) -> None:
        for name, value in self._facts.items():
            if given["facts"][name] != value:
                raise ValueError(
                    f"this replica has {name} {value}, another has {given['facts'][name]}: all "
                    f"replicas must have the same"
                )
        if self._open or given["step"] != self._workers.step:
            self._stale = set(range(self._parts))
        self._workers.step = given["step"]
