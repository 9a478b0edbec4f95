"""Messages that are rounded for a slow network, and what rounding lost sent with the next one."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from partavg.backends.distributed.collectives import AllReduce
from partavg.backends.distributed.trailer import RankReport, Trailer
from partavg.core.average import Arriving
from partavg.core.wire_formats import BLOCK, Codec


class Compressed(AllReduce):
    """Sends how a part's message differs from the sum before, rounded, with error feedback.

    Every rank sums its share of all messages, and sends the rounded sum back to all, so that they
    decode the same. What either rounding lost is added to the next message of the part. The first
    message of a part goes in full, and so does one without a key or that must be exact.

    A thread of its own sends, because there are two collectives to a message and the second must
    not wait for somebody to ask for the sum.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        codec: Codec,
        weight: float,
        trailer: Callable[[Sequence[int], int], Trailer] = Trailer,
    ) -> None:
        ranks = dist.get_process_group_ranks(group)
        super().__init__(dist.new_group(ranks, use_local_synchronization=True), trailer)
        self._codec, self._weight = codec, weight
        self._thread = ThreadPoolExecutor(1, "partavg-wire")
        self._known: dict[int, Tensor] = {}
        self._late: dict[int, Tensor] = {}
        self._late_sum: dict[int, Tensor] = {}

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: bool = False
    ) -> Arriving:
        """Send from the thread."""
        own = self.trailer.sign_(message).clone()  # here, for it says where this rank is now
        return self._thread.submit(self._sum, message, own, None if exact else key).result

    def state(self) -> dict[str, Any]:
        """What the next messages depend on."""
        return {"known": self._known, "late": self._late, "late_sum": self._late_sum}

    def load(self, saved: dict[str, Any], device: torch.device) -> None:
        """Go on from what `state` gave."""
        for name, tensors in saved.items():
            setattr(self, f"_{name}", {k: v.to(device, copy=True) for k, v in tensors.items()})

    def _sum(self, message: Tensor, own: Tensor, key: int | None) -> Tensor:
        if key is None or key not in self._known or len(message) == self.room:
            total = self.begin(message)()
            if key is not None:
                self._known[key] = total.clone()
            return total
        known, body = self._known[key], message[: -self.room]
        body.sub_(known, alpha=self._weight)
        return known.add_(self._rounded_sum(body, own, key)).clone()

    def _rounded_sum(self, change: Tensor, own: Tensor, key: int) -> Tensor:
        ranks = dist.get_world_size(self.group)
        width = -(-len(change) // (ranks * BLOCK)) * BLOCK
        late = self._late.get(key)
        shares = pad(
            change if late is None else change.add_(late), (0, ranks * width - len(change))
        )
        shares = shares.view(ranks, width)
        packed = self._codec.pack(shares)
        self._late[key] = change - self._unpacked(packed, change.dtype).flatten()[: len(change)]
        mine, entries = self._deal(packed, own)
        self.trailer.check(entries)

        part = self._unpacked(mine, change.dtype).sum(0, keepdim=True)
        part += self._late_sum.get(key, 0)
        rounded = self._codec.pack(part)
        self._late_sum[key] = part - self._unpacked(rounded, change.dtype)
        gathered = rounded.new_empty(ranks, rounded.shape[1])
        dist.all_gather(list(gathered), rounded[0], group=self.group)
        self.count(packed.nbytes)
        return self._unpacked(gathered, change.dtype).flatten()[: len(change)]

    def _deal(self, packed: Tensor, own: Tensor) -> tuple[Tensor, list[RankReport]]:
        """Give each rank its share, one's own entry behind it; get one's share of all ranks."""
        entry = own.float().view(torch.uint8).expand(len(packed), -1)
        given = torch.cat([packed, entry], 1)
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given, group=self.group)
        entries = taken[:, packed.shape[1] :].contiguous().view(torch.float32)
        return taken[:, : packed.shape[1]].contiguous(), [RankReport(*e) for e in entries.tolist()]

    def _unpacked(self, packed: Tensor, dtype: torch.dtype) -> Tensor:
        return self._codec.unpack(packed).to(dtype)
