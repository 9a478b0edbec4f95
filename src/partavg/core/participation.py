"""Partial participation: which clients train at a step, and what becomes of the models."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from partavg.core.arguments import check_choice, check_whole
from partavg.core.seeds import fold

Redistribution = Literal["permute", "average", "listen", "none"]

Swap = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""(rows here, rows kept here, the leaving and the coming client of every slot): keep and bring."""


def swap_(
    rows: Shaped[Tensor, "m _"],
    kept: Shaped[Tensor, "n _"],
    leaving: Int[Tensor, "m"],
    coming: Int[Tensor, "m"],
) -> None:
    """The Swap of a process that holds all rows and keeps all that clients keep."""
    kept[leaving] = rows.to(kept.device)
    rows.copy_(kept[coming])


@dataclass(frozen=True, slots=True)
class Participation:
    """`active` of the `clients` train in as many slots, drawn anew after `every` steps.

    With `every` 0 the first draw stays. A slot is a row: a model and the solver's memory. What the
    newly drawn clients start from is the `redistribution`: they take over the models as they are
    ("permute"), the average of all of them ("average"), each part as it was averaged in the last
    `interval` steps, to which they listened in place of those who leave ("listen"), or each client
    goes on with the model that it had itself when it was last active ("none").

    Where draws are `rolling`, slots change hands in turn: some after each cycle of `interval` steps,
    so that all have changed after `every` steps.

    >>> Participation(clients=8, active=2, every=10)(1).shape
    (2,)
    >>> who = Participation(clients=8, active=4, every=10, interval=5, rolling=True)
    >>> (who(6) == who(1)).tolist()
    [True, True, False, False]
    """

    clients: int
    active: int
    every: int = 0
    redistribution: str = "permute"
    seed: int = 0
    interval: int = 1
    """Steps in which each part is averaged once; a simulation puts that of its schedule here."""
    rolling: bool = False

    def __post_init__(self) -> None:
        for name in ("clients", "active", "every", "seed"):
            check_whole(name, getattr(self, name))
        check_whole("interval", self.interval, 1)
        if not 1 <= self.active <= self.clients:
            raise ValueError(
                f"{self.active} of {self.clients} clients cannot be active: "
                f"use 1 to {self.clients}, for example by a larger fraction"
            )
        if self.every < 0:
            raise ValueError(f"a draw every {self.every} steps makes no sense: use 0 for never")
        check_choice("redistribution", self.redistribution, get_args(Redistribution))
        if self.rolling and self.redistribution == "average":
            raise ValueError(
                "rolling draws come after every cycle, and with redistribution 'average' all workers "
                "would send their whole model each time: use permute, listen or none"
            )
        if (self.rolling or self.redistribution == "listen") and (
            not self.every or self.every % self.interval
        ):
            near = max(1, round(self.every / self.interval)) * self.interval
            why = (
                "clients hear each part once before they become active"
                if self.redistribution == "listen"
                else "slots change hands after whole cycles"
            )
            way = "redistribution 'listen'" if self.redistribution == "listen" else "rolling draws"
            raise ValueError(
                f"with {way} {why}, and a draw every {self.every} steps is no multiple of the "
                f"interval {self.interval}: use for example {near}"
            )

    def __call__(self, step: int) -> NDArray[np.int64]:
        """The client in each slot at a step, counted from 1: a pure function of the step."""
        return self.drawn(self.draw(step))

    def draw(self, step: int) -> int:
        """How many draws came before that of a step."""
        return (step - 1) // self._gap if self.every else 0

    @property
    def _gap(self) -> int:
        """Steps between two draws."""
        return self.interval if self.rolling else self.every

    def drawn(self, number: int) -> NDArray[np.int64]:
        """The client in each slot after so many draws."""
        if self.active == self.clients and not self.moves:
            return np.arange(self.clients)
        if self.rolling:
            return self._rolled(number)
        return _order(self.seed, self.clients, number)[: self.active]

    def _rolled(self, number: int) -> NDArray[np.int64]:
        """The same, where each draw goes on from the one before."""
        known = _rolled_so_far(replace(self, redistribution="permute"))
        for count in range(len(known), number + 1):
            slots = known[count - 1].copy() if count else np.full(self.active, -1)
            block = self.block(count) if count else slice(0, self.active)
            slots[block] = -1
            order = _order(self.seed, self.clients, count)
            slots[block] = order[~np.isin(order, slots)][: len(slots[block])]
            slots.flags.writeable = False
            known[count] = slots
        return known[number]

    def block(self, number: int) -> slice:
        """The slots that change hands with a draw: all, or those whose turn it is."""
        turns = self.every // self._gap if self.every else 1
        turn = number % turns
        return slice(-(-turn * self.active // turns), -(-(turn + 1) * self.active // turns))

    @property
    def moves(self) -> bool:
        """Whether a row ever reads the samples of another client."""
        return self.every > 0 and (self.active < self.clients or self.redistribution == "permute")

    @property
    def puts_away(self) -> bool:
        """Whether clients keep their models while others train."""
        return self.moves and self.redistribution == "none"

    def leaving(self, step: int) -> slice:
        """The slots in which averages go to who comes next, not to who is about to leave."""
        next_cycle = step + self.interval - (step - 1) % self.interval
        if self.redistribution != "listen" or not self.changes(next_cycle):
            return slice(0, 0)
        return self.block(self.draw(next_cycle))

    def changes(self, step: int) -> bool:
        """Whether slots change hands before this step."""
        number = self.draw(step)
        if step == 1 or number == self.draw(step - 1):
            return False
        block = self.block(number)
        return block.start < block.stop


@lru_cache(maxsize=64)
def _order(seed: int, clients: int, number: int) -> NDArray[np.int64]:
    """All clients in the order in which a draw takes them."""
    order = np.random.default_rng(fold(seed, "participation", number)).permutation(clients)
    order.flags.writeable = False
    return order


@lru_cache(maxsize=8)
def _rolled_so_far(who: Participation) -> dict[int, NDArray[np.int64]]:
    """Draws that were made, by their number from 0 on without a gap."""
    return {}
