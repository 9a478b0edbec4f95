"""What ranks of a sharded model tell each other: those of one shard, and then all of them."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from partavg.backends.distributed.shard_groups import ShardGroups
from partavg.backends.distributed.trailer import RankReport, Trailer


class ShardTrailer(Trailer):
    """An entry per rank of all replicas behind every message.

    A message is about one shard, and only ranks that hold it fill in their entries. What they learn
    they tell the others of their replica, so that all ranks know of the same trouble.
    """

    def __init__(self, shards: ShardGroups) -> None:
        super().__init__(shards.ranks, shards.ranks.index(dist.get_rank()))
        self._shards = shards

    def read(self, entries: Float[Tensor, "_"]) -> None:
        """Tell the others of the replica, and raise an error if something is wrong."""
        self._tell(entries)
        super().read(entries)

    def check(self, entries: Sequence[RankReport]) -> None:
        """The same for entries that came without a message, those of one shard."""
        shards = self._shards
        if len(entries) < len(shards.ranks):
            own = torch.tensor(entries, device=shards.device)
            every = own.new_zeros(len(shards.ranks), own.shape[1])
            every[[shards.ranks.index(rank) for rank in shards.peers]] = own
            self._tell(every)
            entries = [RankReport(*entry) for entry in every.tolist()]
        super().check(entries)

    def _tell(self, entries: Tensor) -> None:
        if self._shards.inside.size() > 1:
            told = entries.double()  # of one type, whether messages are rounded or not
            dist.all_reduce(told, group=self._shards.inside)
            entries.copy_(told)
