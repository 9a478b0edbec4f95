"""Messages that are rounded for a slow network, and what rounding lost sent with the next one."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import pad

from partavg.backends.distributed.collectives import AllReduce, MakeTrailer
from partavg.backends.distributed.trailer import RankReport, Trailer
from partavg.core.reduce import Arriving
from partavg.core.wire_formats import BLOCK, Codec


class Compressed(AllReduce):
    """Sends how a part's message differs from the sum before, rounded, with error feedback.

    Every rank sums its share of all messages, and sends the rounded sum back to all, so that they
    decode the same. What either rounding lost is added to the next message of the part. The first
    message of a part goes in full, and so does one without a key, and what must be exact.

    A thread of its own sends, because there are two collectives to a message and the second must
    not wait for somebody to ask for the sum.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        codec: Codec,
        weight: float,
        trailer: MakeTrailer = Trailer,
    ) -> None:
        """The group must be this collective's own: nobody else may send from another thread."""
        super().__init__(group, trailer=trailer)
        self._codec, self._weight, self._ranks = codec, weight, group.size()
        self._thread = ThreadPoolExecutor(1, "partavg-wire")
        self._known: dict[int, Tensor] = {}
        self._late: dict[int, Tensor] = {}
        self._late_sum: dict[int, Tensor] = {}

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """Send from the thread."""
        own = self.trailer.sign_(message).clone()  # here, for it says where this rank is now
        rounded = len(message) - self.room - exact
        return self.timed(self._thread.submit(self._sum, message, own, rounded, key).result)

    def close(self) -> None:
        """Let go of the thread, too; it ends when nothing is on its way."""
        self._thread.shutdown(wait=False)
        super().close()

    def state(self) -> dict[str, Any]:
        """What the next messages depend on."""
        return {"known": self._known, "late": self._late, "late_sum": self._late_sum}

    def load(self, saved: dict[str, Any], device: torch.device) -> None:
        """Go on from what `state` gave.

        Where ranks had other shares, what rounding lost is nobody's any more and begins anew.
        """
        self._known = _copied(saved.get("known", {}), device)
        widths = {key: self._width(len(known), BLOCK) for key, known in self._known.items()}
        alike = all(late.shape[1] == widths[key] for key, late in saved.get("late_sum", {}).items())
        self._late, self._late_sum = (
            _copied(saved.get(name, {}) if alike else {}, device) for name in ("late", "late_sum")
        )

    def _sum(self, message: Tensor, own: Tensor, rounded: int, key: int | None) -> Tensor:
        if key is None or not rounded:
            return self.begin(message)()
        if key not in self._known:
            total = self.begin(message)()
            self._known[key] = total[:rounded].clone()
            return total
        known, body = self._known[key], message[: -self.room]
        if len(known) != rounded:
            raise ValueError(
                f"part {key} has {rounded} numbers, and {len(known)} when it was sent last: load "
                f"checkpoints into the same plan, or begin again without what was loaded"
            )
        change = body[:rounded].sub_(known, alpha=self._weight)
        total, tail = self._sums(change, body[rounded:], own, key)
        return torch.cat([known.add_(total), tail])

    def _sums(
        self, change: Tensor, tail: Tensor, own: Tensor, key: int
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "e"]]:
        """The sums of all ranks' changes, rounded, and of what must be exact."""
        kind = change.dtype
        if key in self._late:
            change += self._late[key]
        packed = self._codec.pack(self._shares(change, BLOCK))
        tails = self._shares(tail, 1)
        mine, tails_of_mine, entries = self._deal(packed, tails, own)
        # If somebody is in trouble, or all leave, this message has no effect, and nothing was lost.
        self.trailer.check(entries)
        self._late[key] = change - self._unpacked(packed, kind).flatten()[: len(change)]

        part = self._unpacked(mine, kind).sum(0, keepdim=True)
        part += self._late_sum.get(key, 0)
        rounded = self._codec.pack(part)
        self._late_sum[key] = part - self._unpacked(rounded, kind)
        back = joined(rounded, tails_of_mine.sum(0, keepdim=True))
        gathered = back.new_empty(self._ranks, back.shape[1])
        dist.all_gather(list(gathered), back[0], group=self.group)
        self.count(packed.nbytes + tails.nbytes)
        sums, ends = parted(gathered, packed.shape[1], kind)
        return (
            self._unpacked(sums, kind).flatten()[: len(change)],
            ends.flatten()[: len(tail)],
        )

    def _shares(self, numbers: Float[Tensor, "_"], multiple: int) -> Float[Tensor, "m n"]:
        """A row for each rank, all equally long, a multiple of something."""
        width = self._width(len(numbers), multiple)
        return pad(numbers, (0, self._ranks * width - len(numbers))).view(self._ranks, width)

    def _width(self, numbers: int, multiple: int) -> int:
        """How long the share of a rank is."""
        return -(-numbers // (self._ranks * multiple)) * multiple

    def _deal(
        self, packed: Tensor, tails: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor, list[RankReport]]:
        """Give each rank its shares, one's own entry behind them; get one's shares of all ranks."""
        entry = own.float().expand(self._ranks, -1)
        given = joined(joined(packed, tails), entry)
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given, group=self.group)
        shares, entries = parted(taken, packed.shape[1] + _size(tails), entry.dtype)
        mine, tails_of_mine = parted(shares, packed.shape[1], tails.dtype)
        return mine, tails_of_mine, [RankReport(*e) for e in entries.tolist()]

    def _unpacked(self, packed: UInt8[Tensor, "m _"], dtype: torch.dtype) -> Float[Tensor, "m n"]:
        return self._codec.unpack(packed).to(dtype)


def _copied(kept: dict[int, Tensor], device: torch.device) -> dict[int, Tensor]:
    return {key: tensor.to(device, copy=True) for key, tensor in kept.items()}


def _size(rows: Tensor) -> int:
    """Bytes of each row."""
    return rows.shape[1] * rows.element_size()


def joined(bytes_: UInt8[Tensor, "m b"], numbers: Float[Tensor, "m n"]) -> UInt8[Tensor, "m _"]:
    """Rows of bytes with those of numbers behind them."""
    return torch.cat([bytes_, numbers.contiguous().view(torch.uint8)], 1)


def parted(
    rows: UInt8[Tensor, "m _"], place: int, dtype: torch.dtype
) -> tuple[UInt8[Tensor, "m b"], Float[Tensor, "m n"]]:
    """What was joined."""
    width = (rows.shape[1] - place) // dtype.itemsize
    # Memory of its own, since numbers may not begin at any byte.
    numbers = torch.empty(len(rows), width, dtype=dtype, device=rows.device)
    numbers.view(torch.uint8).copy_(rows[:, place:])
    return rows[:, :place].contiguous(), numbers
