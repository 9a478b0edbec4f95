"""Partial participation: which clients train at a step, and what becomes of the models."""

from collections.abc import Callable
from dataclasses import dataclass
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

    >>> Participation(clients=8, active=2, every=10)(1).shape
    (2,)
    """

    clients: int
    active: int
    every: int = 0
    redistribution: str = "permute"
    seed: int = 0
    interval: int = 1
    """Steps in which each part is averaged once; a simulation puts that of its schedule here."""

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
        if self.redistribution == "listen" and (not self.every or self.every % self.interval):
            near = max(1, round(self.every / self.interval)) * self.interval
            raise ValueError(
                f"with redistribution 'listen' clients hear each part once before they become "
                f"active, and a draw every {self.every} steps is no multiple of the interval "
                f"{self.interval}: use for example {near}"
            )

    def __call__(self, step: int) -> NDArray[np.int64]:
        """The client in each slot at a step, counted from 1: a pure function of the step."""
        return self.drawn(self.draw(step))

    def draw(self, step: int) -> int:
        """How many draws came before that of a step."""
        return (step - 1) // self.every if self.every else 0

    def drawn(self, number: int) -> NDArray[np.int64]:
        """The client in each slot after so many draws."""
        if self.active == self.clients and not self.moves:
            return np.arange(self.clients)
        return _draw(self.seed, self.clients, self.active, number)

    @property
    def moves(self) -> bool:
        """Whether a row ever reads the samples of another client."""
        return self.every > 0 and (self.active < self.clients or self.redistribution == "permute")

    @property
    def puts_away(self) -> bool:
        """Whether clients keep their models while others train."""
        return self.moves and self.redistribution == "none"

    def listened_to(self, step: int) -> bool:
        """Whether averages go to those who come next, not to those who are about to leave."""
        if self.redistribution != "listen":
            return False
        return (step - 1) % self.every >= self.every - self.interval

    def changes(self, step: int) -> bool:
        """Whether a new draw begins with this step."""
        return step > 1 and self.draw(step) != self.draw(step - 1)


@lru_cache(maxsize=64)
def _draw(seed: int, clients: int, active: int, number: int) -> NDArray[np.int64]:
    generator = np.random.default_rng(fold(seed, "participation", number))
    drawn = generator.permutation(clients)[:active]
    drawn.flags.writeable = False
    return drawn
