"""What clients keep for themselves, dealt over ranks."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, distributed

from partavg.core.bank import Bank, arrived


class ClientBank:
    """The Swap of ranks: the rows of a client are kept at its home, wherever it was active.

    Rows go home in one exchange between all ranks, and come to their new slots in another. All
    ranks know all draws, so nobody needs to be told who sends what.
    """

    def __init__(
        self,
        rank: int,
        homes: Sequence[slice],
        slots: Sequence[slice],
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._rank, self._waiting = rank, waiting
        self._home = _owners(homes)
        self._holder = _owners(slots)
        self._first, self._own = homes[rank].start, slots[rank]
        self._size = len(homes)

    def __call__(
        self,
        rows: Shaped[Tensor, "_ w"],
        kept: Bank,
        leaving: Int[Tensor, "a"],
        coming: Int[Tensor, "a"],
    ) -> None:
        """Send the rows of leaving clients home, and bring those of coming ones."""
        if not rows.shape[1]:
            return
        there, order = self._between(leaving)
        mine = arrived(rows[order.to(rows.device)], kept.device)
        at_home = self._exchanged(mine, self._homes_of(leaving), self._holders_of(leaving))
        kept.put_(there, at_home)
        there, order = self._between(coming)
        brought = self._exchanged(
            kept.take(there), self._holders_of(coming), self._homes_of(coming)
        )
        rows[order.to(rows.device)] = arrived(brought, rows.device)

    def _between(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Where clients of this home are kept, in the order of slots; own slots, by home."""
        here = clients[self._home[clients] == self._rank] - self._first
        return here, torch.argsort(self._home[clients[self._own]], stable=True)

    def _homes_of(self, clients: Tensor) -> list[int]:
        """How many of the clients in own slots live at each rank."""
        return self._counts(self._home[clients[self._own]])

    def _holders_of(self, clients: Tensor) -> list[int]:
        """How many of the clients of this home are in the slots of each rank."""
        return self._counts(self._holder[self._home[clients] == self._rank])

    def _counts(self, ranks: Tensor) -> list[int]:
        counts: list[int] = torch.bincount(ranks, minlength=self._size).tolist()
        return counts

    def _exchanged(self, rows: Tensor, to: list[int], of: list[int]) -> Tensor:
        received = rows.new_empty(sum(of), rows.shape[1])
        with self._waiting():
            distributed.all_to_all_single(received, rows.contiguous(), of, to)
        return received


def _owners(dealt: Sequence[slice]) -> Tensor:
    """The rank that each thing was dealt to."""
    counts = torch.tensor([share.stop - share.start for share in dealt])
    return torch.repeat_interleave(torch.arange(len(dealt)), counts)
