"""Sums over all workers, wherever they are: what a backend adds."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

Arriving = Callable[[], Tensor]
"""A sum over all workers [l] that may be on its way: call it to wait for it."""


class LeftOut(Exception):
    """An average that did not come about: workers go on with what they have."""


@runtime_checkable
class Reduce(Protocol):
    """From this process's workers to all workers: all that a backend adds."""

    @property
    def room(self) -> int:
        """Views behind those of a message that it wants for itself."""
        ...

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """Begin to sum a message [l] over all processes; it is used up.

        Messages of one key are about the same at different times. Their last `exact` numbers,
        before the room, may not be rounded.
        """
        ...

    def gather(self, rows: Float[Tensor, "m l"]) -> Arriving:
        """Begin to collect the rows of all processes, one below the other."""
        ...


def accumulating(dtype: torch.dtype) -> torch.dtype:
    """The type of weights and sums over numbers of a type: float32 at least.

    In bfloat16 three weights of 1/3 add up to 1.002, and 300 averagings to twice the model.

    >>> accumulating(torch.bfloat16), accumulating(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


class Alone:
    """The Reduce of a process that holds all workers."""

    room = 0

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """The sum is complete."""
        return lambda: message

    def gather(self, rows: Float[Tensor, "m l"]) -> Arriving:
        """All rows are here."""
        return lambda: rows


alone = Alone()


def reduced(reduce: Reduce, values: Float[Tensor, "_"]) -> Float[Tensor, "_"]:
    """The sum of some values over all processes, at once."""
    return reduce(torch.nn.functional.pad(values, (0, reduce.room)))()
