"""Attackers among those whose messages are aggregated."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.attacks.attack import Attack
from partavg.core.aggregate import About, Aggregate, one_message
from partavg.core.participation import Participation


@dataclass(frozen=True, slots=True)
class Attackers:
    """The clients that attack, and the rows that they have: participation moves them."""

    clients: tuple[int, ...]
    participation: Participation | None

    def rows(self, step: int) -> Int[Tensor, "a"]:
        """Theirs at a step, among those of all active workers."""
        who = self.participation
        return _rows(self.clients, who, who.draw(step) if who else 0)


@dataclass(frozen=True, slots=True)
class Lying:
    """An Aggregate that gets the attackers' messages in place of theirs."""

    attack: Attack
    attackers: Attackers
    aggregate: Aggregate

    def __call__(
        self, messages: Float[Tensor, "m l"], weights: Float[Tensor, "m"], about: About
    ) -> Float[Tensor, "l"]:
        """What the aggregate makes of what arrives."""
        liars = self.attackers.rows(max(1, about.step)).to(messages.device)
        if len(liars):
            sent = self.attack.lie(messages, liars, about)
            messages = messages.index_copy(0, liars, sent.to(messages.dtype))
        return one_message(self.aggregate, messages, weights, about)


@lru_cache(maxsize=8)
def _rows(clients: tuple[int, ...], who: Participation | None, number: int) -> Int[Tensor, "a"]:
    if who is None:
        return torch.tensor(clients, dtype=torch.long)
    places = [row for row, client in enumerate(who.drawn(number).tolist()) if client in clients]
    return torch.tensor(places, dtype=torch.long)
