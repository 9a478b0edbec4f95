"""Workers of different speed: who takes a local step at which step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from partavg.core.seeds import bits, fold
from partavg.registry import Names


@dataclass(frozen=True, slots=True)
class Fixed:
    """Client i takes `counts[i mod len(counts)]` local steps in every `interval`, evenly spread.

    >>> [Fixed(4, (1, 3), clients=2)(step).tolist() for step in (1, 2, 3, 4)]
    [[False, False], [False, True], [False, True], [True, True]]
    """

    interval: int
    counts: tuple[int, ...]
    clients: int

    def __post_init__(self) -> None:
        _check_counts(self.counts, self.interval)

    def __call__(self, step: int) -> NDArray[np.bool_]:
        """Which clients take step 1, 2, …: a pure function of the step."""
        return _steps_now(np.resize(np.array(self.counts), self.clients), self.interval, step)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Every client takes `least` to `most` local steps in an `interval`, drawn anew each time."""

    interval: int
    least: int
    most: int
    clients: int
    seed: int = 0

    def __post_init__(self) -> None:
        _check_counts((self.least, self.most), self.interval)
        if self.least > self.most:
            raise ValueError(f"least {self.least} is above most {self.most}: swap them")

    def __call__(self, step: int) -> NDArray[np.bool_]:
        """Which clients take step 1, 2, …: a pure function of the step."""
        number = np.array([(step - 1) // self.interval], np.uint64)
        choices = np.uint64(self.most - self.least + 1)
        drawn = bits(_seeds(self.seed, self.clients), number) % choices
        return _steps_now(drawn.astype(np.int64) + self.least, self.interval, step)


@lru_cache(maxsize=8)
def _seeds(seed: int, clients: int) -> NDArray[np.uint64]:
    return np.array([fold(seed, "pace", client) for client in range(clients)], np.uint64)


def _steps_now(counts: NDArray[np.int64], interval: int, step: int) -> NDArray[np.bool_]:
    """Where the number of steps due, counts · place / interval rounded down, has just grown."""
    place = (step - 1) % interval + 1
    return counts * place // interval > counts * (place - 1) // interval


def _check_counts(counts: tuple[int, ...], interval: int) -> None:
    for count in counts or (0,):
        if not 1 <= count <= interval:
            raise ValueError(
                f"{count} local steps in an interval of {interval} cannot be: use 1 to {interval}"
            )


Pace = Callable[[int], NDArray[np.bool_]]
"""step -> which of all clients take it."""


def even(interval: int, clients: int, seed: int) -> None:
    """Everybody takes every step."""


def fixed(interval: int, clients: int, seed: int, *, counts: tuple[int, ...] = ()) -> Pace:
    """Local steps per interval, client by client; a short list is repeated."""
    return Fixed(interval, counts, clients)


def drawn(interval: int, clients: int, seed: int, *, least: int = 1, most: int = 1) -> Pace:
    """A number of local steps drawn for each client and interval."""
    return Drawn(interval, least, most, clients, seed)


PACES: Names[Callable[..., Pace | None]] = Names(
    "pace", {"drawn": drawn, "even": even, "fixed": fixed}
)
