"""Partial participation: which clients train at a step, and what becomes of the models."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from partavg.core.arguments import check_choice, check_whole
from partavg.core.bank import Bank, arrived
from partavg.core.rolling import block, first_of, rolled

Redistribution = Literal["permute", "average", "listen", "none", "released"]

Swap = Callable[[Tensor, Bank, Tensor, Tensor], None]
"""(rows here, the bank here, the leaving and the coming client of every slot): keep and bring."""


def swap_(
    rows: Shaped[Tensor, "m _"],
    kept: Bank,
    leaving: Int[Tensor, "m"],
    coming: Int[Tensor, "m"],
) -> None:
    """The Swap of a process that holds all rows and keeps all that clients keep."""
    kept.put_(leaving, rows)
    rows.copy_(arrived(kept.take(coming), rows.device))


@dataclass(frozen=True, slots=True)
class Participation:
    """`active` of the `clients` train in as many slots, drawn anew after `every` steps.

    With `every` 0 the first draw stays. A slot is a row: a model and the solver's memory. What the
    newly drawn clients start from is the `redistribution`: they take over the models as they are
    ("permute"), the average of all of them ("average"), each part as it was averaged in the last
    `interval` steps, to which they listened in place of those who leave ("listen"), each client
    goes on with the model that it had itself when it was last active ("none"), or, where a run is
    private, all begin with each part as it was last released ("released").

    Where draws are `rolling`, slots change hands in turn: some after each cycle of `interval`
    steps, so that all have changed after `every` steps.

    >>> Participation(clients=8, active=2, every=10)(1).shape
    (2,)
    >>> who = Participation(clients=20, active=4, every=10, interval=5, rolling=True)
    >>> (who(6) == who(1)).tolist(), (who(11) == who(6)).tolist()
    ([False, False, True, True], [True, True, False, False])
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
        self._check_cycles()

    def _check_cycles(self) -> None:
        """Raise a ValueError for hands that could not change after whole cycles."""
        if self.rolling and self.redistribution == "average":
            raise ValueError(
                "rolling draws come after every cycle, and with redistribution 'average' all would "
                "send their whole model each time: use permute, listen or none"
            )
        if self.rolling and not self.every:
            raise ValueError("rolling draws need steps after which all have changed: give every")
        if self.every % self.interval and (self.rolling or self.redistribution == "listen"):
            near = max(1, round(self.every / self.interval)) * self.interval
            why = "rolling draws come after whole cycles"
            if self.redistribution == "listen":
                why = (
                    "with redistribution 'listen' clients hear each part once before they become "
                    "active"
                )
            raise ValueError(
                f"{why}, and a draw every {self.every} steps is no multiple of the interval "
                f"{self.interval}: use for example {near}"
            )

    def __call__(self, step: int) -> NDArray[np.int64]:
        """The client in each slot at a step, counted from 1: a pure function of the step."""
        return self.drawn(self.draw(step))

    def draw(self, step: int) -> int:
        """How many draws came before that of a step."""
        gap = self.interval if self.rolling else self.every
        return (step - 1) // gap if gap else 0

    def drawn(self, number: int) -> NDArray[np.int64]:
        """The client in each slot after so many draws."""
        if self.active == self.clients and not self.moves:
            return np.arange(self.clients)
        if self._turns > 1:
            return rolled(self.seed, self.clients, self.active, self._turns, number)
        return first_of(self.seed, self.clients, self.active, number)

    def changing(self, step: int) -> slice:
        """The slots that change hands before a step: none, all, or those whose turn it is."""
        number = self.draw(step)
        waits = not self.moves and (self.rolling or self.redistribution == "listen")
        if step == 1 or number == self.draw(step - 1) or waits:
            return slice(0, 0)
        return block(self.active, self._turns, number)

    def changes(self, step: int) -> bool:
        """Whether slots change hands before a step."""
        slots = self.changing(step)
        return bool(slots.start < slots.stop)

    def leaving(self, step: int) -> slice:
        """The slots in which averages go to who comes next, not to who is about to leave."""
        if self.redistribution != "listen":
            return slice(0, 0)
        return self.changing(step + self.interval - (step - 1) % self.interval)

    @property
    def moves(self) -> bool:
        """Whether a row ever reads the samples of another client.

        Where all are active nobody can come, but models may change hands among them.
        """
        permutes = self.redistribution == "permute" and not self.rolling
        return self.every > 0 and (self.active < self.clients or permutes)

    @property
    def puts_away(self) -> bool:
        """Whether clients keep their models while others train."""
        return self.moves and self.redistribution == "none"

    def present(self, step: int) -> NDArray[np.bool_] | None:
        """Which slots somebody is in at a step; None where somebody is in all."""
        return None

    @property
    def _turns(self) -> int:
        """Draws after which all slots have changed hands."""
        return self.every // self.interval if self.rolling else 1
