"""Draws where slots change hands in turn: a few each time, and in the end all."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from partavg.core.seeds import fold

Drawn = NDArray[np.int64]


@lru_cache(maxsize=64)
def first_of(seed: int, clients: int, active: int, number: int) -> Drawn:
    """The clients that a draw takes."""
    return _kept(_order_of(seed, clients, number)[:active])


def _order_of(seed: int, clients: int, number: int) -> Drawn:
    """All clients in the order in which a draw takes them."""
    return np.random.default_rng(fold(seed, "participation", number)).permutation(clients)


def _kept(some: Drawn) -> Drawn:
    """A copy that does not change, and does not hold on to all clients."""
    some = some.copy()
    some.flags.writeable = False
    return some


def block(active: int, turns: int, number: int) -> slice:
    """The slots that change hands with a draw, of which `turns` change all; perhaps none."""
    turn = (number - 1) % turns
    return slice(turn * active // turns, (turn + 1) * active // turns)


@lru_cache(maxsize=64)
def rolled(seed: int, clients: int, active: int, turns: int, number: int) -> Drawn:
    """The client in each slot after so many draws.

    A draw gives its slots to clients drawn of all that are in no other slot. It depends on those
    before it, which are gone through once: a later draw goes on from the one asked for last.
    """
    walk = _walk(seed, clients, active, turns)
    return _kept(walk.to(number)[:active])


class _Walk:
    """Goes from draw to draw and remembers the last: all clients, first those in slots."""

    def __init__(self, seed: int, clients: int, active: int, turns: int) -> None:
        self._seed, self._active, self._turns = seed, active, turns
        self._first = self._last = 0, _order_of(seed, clients, 0)

    def to(self, number: int) -> Drawn:
        """All clients after so many draws; it can be asked from several threads."""
        done, order = self._last if self._last[0] <= number else self._first
        order = order.copy()
        for each in range(done + 1, number + 1):
            self._draw_(order, each)
        self._last = number, order
        return order

    def _draw_(self, order: Drawn, number: int) -> None:
        """Exchange the clients of some slots for others, all equally likely."""
        slots = block(self._active, self._turns, number)
        count = slots.stop - slots.start
        if not count:
            return
        generator = np.random.default_rng(fold(self._seed, "participation", number))
        # Those that may come are numbered: the clients of these slots, then all that are in none.
        others = len(order) - self._active
        chosen = generator.choice(count + others, count, replace=False)
        stays = chosen < count
        places = np.where(stays, chosen + slots.start, chosen - count + self._active)
        coming, leaving = order[places], np.delete(order[slots], chosen[stays])
        order[slots], order[places[~stays]] = coming, leaving


_walk = lru_cache(maxsize=8)(_Walk)
