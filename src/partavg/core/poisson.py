"""Participation by chance: in every cycle each client is active with the same probability."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from partavg.core.participation import Participation
from partavg.core.seeds import fold

CYCLES = 10_000
"""Draws that are known ahead: there are as many slots as the largest of them needs."""


@dataclass(frozen=True, slots=True)
class Poisson(Participation):
    """Each of the `clients` is active with probability `fraction`, drawn anew for every cycle.

    How many are active is another number every time. There are slots for the most that are active
    in any of the first `CYCLES` draws, which is known ahead since draws are a function of the
    seed: no client that was drawn is ever left out. Slots that nobody is in rest and weigh nothing.
    Those who come begin with what was last released.

    >>> who = Poisson.of(100, 0.1, every=4)
    >>> who.active, int(who.present(1).sum()), int(who.present(5).sum())
    (23, 11, 12)
    """

    fraction: float = 1.0

    @classmethod
    def of(cls, clients: int, fraction: float, every: int, seed: int = 0) -> "Poisson":
        """With as many slots as the draws need."""
        most = max(1, int(_counts(clients, fraction, seed).max()))
        return cls(
            clients=clients,
            active=most,
            every=every,
            redistribution="released",
            seed=seed,
            interval=every,
            fraction=fraction,
        )

    def present(self, step: int) -> NDArray[np.bool_]:
        """Which slots somebody is in at a step."""
        number = self.draw(step)
        if number >= CYCLES:
            raise ValueError(
                f"step {step} needs draw {number + 1}, and slots were made for {CYCLES}: train "
                f"for fewer cycles, or with a longer interval"
            )
        here = int(_counts(self.clients, self.fraction, self.seed)[number])
        return np.arange(self.active) < here

    @property
    def moves(self) -> bool:
        """Slots always change hands."""
        return True


@lru_cache(maxsize=8)
def _counts(clients: int, fraction: float, seed: int) -> NDArray[np.int64]:
    """How many clients are active in each draw."""
    generator = np.random.default_rng(fold(seed, "poisson"))
    return generator.binomial(clients, fraction, CYCLES)
