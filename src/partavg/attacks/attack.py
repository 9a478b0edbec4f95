"""What an attack is: some clients, and what they do to messages or to their samples."""

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.aggregate import About
from partavg.core.arguments import check_kind, check_number, check_whole
from partavg.core.seeds import fold


@dataclass(frozen=True)
class Attack:
    """Some clients attack: a share of all, drawn from the seed, or those whose numbers are given.

    With a larger fraction the same ones attack, and others. Overwrite `lie` for messages that
    attackers send in place of their own, `mislabel` for targets that they train on.

    >>> Attack(0.4).attackers(clients=5, seed=0), Attack(clients=(4, 1)).attackers(5, seed=0)
    ((1, 2), (1, 4))
    """

    fraction: float = 0.2
    clients: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in (float, float | None) and value is not field.default:
                check_number(field.name, value)
        if not 0 <= self.fraction < 1:
            raise ValueError(
                f"fraction {self.fraction} of all clients cannot attack: use 0 to below 1"
            )
        check_kind("clients", self.clients, tuple | list, "the numbers of those that attack")
        for client in self.clients:
            check_whole("an attacker's number", client, 0)

    def attackers(self, clients: int, seed: int) -> tuple[int, ...]:
        """Those of so many clients that attack."""
        if not self.clients:
            drawn = np.random.default_rng(fold(seed, "attack")).permutation(clients)
            return tuple(sorted(drawn[: round(self.fraction * clients)].tolist()))
        if max(self.clients) >= clients:
            raise ValueError(
                f"attacker {max(self.clients)} is none of {clients} clients: they are counted from "
                f"0"
            )
        return tuple(sorted(set(self.clients)))

    def lie(
        self, messages: Float[Tensor, "m l"], liars: Int[Tensor, "a"], about: About
    ) -> Float[Tensor, "a l"]:
        """What some send, from what all would send: attackers see everything."""
        return messages[liars]

    def mislabel(self, targets: Int[Tensor, "a n"], classes: int) -> Int[Tensor, "a n"]:
        """What attackers take for the classes of their samples."""
        return targets

    @property
    def lies(self) -> bool:
        """Whether messages are changed."""
        return type(self).lie is not Attack.lie

    @property
    def mislabels(self) -> bool:
        """Whether targets are changed."""
        return type(self).mislabel is not Attack.mislabel


def with_parameters(
    messages: Float[Tensor, "a l"], about: About, params: Float[Tensor, "a n"]
) -> Float[Tensor, "a l"]:
    """Messages with other parameters in them."""
    changed, at = messages.clone(), 0
    for place in about.places:
        width = place.stop - place.start
        changed[:, place] = params[:, at : at + width]
        at += width
    return changed
