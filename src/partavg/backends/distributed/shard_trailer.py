"""What ranks of a sharded model tell each other: those of one shard, and then all of them."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor

from partavg.backends.distributed.trailer import RankReport, Trailer


class ShardTrailer(Trailer):
    """An entry per rank of all replicas behind every message.

    A message is about one shard, and only its ranks, the `peers`, fill in their entries. What they
    learn they tell the others `inside` their replica, so that all ranks know of the same trouble.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        peers: Sequence[int],
        weights: Sequence[float] | None,
        inside: dist.ProcessGroup,
    ) -> None:
        self._places = [ranks.index(rank) for rank in peers]
        known = dict(zip(peers, weights or [1 / len(peers)] * len(peers), strict=True))
        every = [known.get(rank, 0.0) for rank in ranks]
        super().__init__(ranks, ranks.index(dist.get_rank()), every)
        self._inside = inside

    def read(self, entries: Float[Tensor, "_"]) -> None:
        """Tell the others of the replica, and raise an error if something is wrong."""
        told = self._of_all(entries)
        self._tell_(told)
        super().read(told)

    def check(self, entries: Sequence[RankReport]) -> None:
        """The same for entries that came without a message, those of the peers."""
        if len(entries) < len(self._ranks):
            told = self._of_all(torch.tensor(entries, device=self._device).flatten())
            self._tell_(told)
            entries = [RankReport(*entry) for entry in told.view(len(self._ranks), -1).tolist()]
        super().check(entries)

    def sign_(self, message: Float[Tensor, "_"]) -> Float[Tensor, "4"]:
        """Write one's own entry behind a message."""
        self._device = message.device
        return super().sign_(message)

    def _faulty(self, entries: Float[Tensor, "_"]) -> Bool[Tensor, "m"]:
        return super()._faulty(self._of_all(entries))

    def _of_all(self, entries: Float[Tensor, "_"]) -> Float[Tensor, "_"]:
        """The same entries among those of all ranks."""
        if len(entries) == self.room:
            return entries
        every = entries.new_zeros(len(self._ranks), len(RankReport._fields))
        every[self._places] = entries.view(len(self._places), -1)
        return every.flatten()

    def _tell_(self, entries: Float[Tensor, "_"]) -> None:
        if self._inside.size() > 1:
            told = entries.double()  # of one type, whether messages are rounded or not
            dist.all_reduce(told, group=self._inside)
            entries.copy_(told)
