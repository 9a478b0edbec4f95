"""How the numbers of a message travel: in full, or rounded to fewer bytes."""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import BFloat16 as BFloat16Tensor
from jaxtyping import Float, UInt8
from torch import Tensor

BLOCK = 256
"""Numbers that are packed together, and share a scale where there is one."""


@runtime_checkable
class Codec(Protocol):
    """Numbers to bytes and back; rows are packed each by itself, their length in whole blocks."""

    def pack(self, rows: Float[Tensor, "m n"]) -> UInt8[Tensor, "m _"]:
        """The bytes to send."""
        ...

    def unpack(self, packed: UInt8[Tensor, "m _"]) -> Float[Tensor, "m n"]:
        """The rounded numbers."""
        ...


class BFloat16:
    """Two bytes a number: 8 bits of precision."""

    def pack(self, rows: Float[Tensor, "m n"]) -> UInt8[Tensor, "m _"]:
        """Round to bfloat16."""
        return rows.bfloat16().view(torch.uint8)

    def unpack(self, packed: UInt8[Tensor, "m _"]) -> Float[Tensor, "m n"]:
        """Back to float32."""
        return packed.view(torch.bfloat16).float()


class Int8:
    """A byte a number, and a scale for every block of them: the largest becomes ±127."""

    def pack(self, rows: Float[Tensor, "m n"]) -> UInt8[Tensor, "m _"]:
        """Round to the scale."""
        blocks = rows.float().view(len(rows), -1, BLOCK)
        scales = blocks.abs().amax(2, keepdim=True) / 127
        levels = (blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)).round_()
        bytes_ = levels.to(torch.int8).flatten(1).view(torch.uint8)
        return torch.cat([bytes_, scales.flatten(1).view(torch.uint8)], 1)

    def unpack(self, packed: UInt8[Tensor, "m _"]) -> Float[Tensor, "m n"]:
        """Levels times scales."""
        count = packed.shape[1] * BLOCK // (BLOCK + 4)
        levels = packed[:, :count].view(torch.int8).reshape(len(packed), -1, BLOCK)
        scales = packed[:, count:].contiguous().view(torch.float32)
        numbers: Tensor = levels * scales[:, :, None]
        return numbers.flatten(1)


class Int4:
    """Two numbers a byte, and a scale in bfloat16 for every 32: the largest becomes ±8.

    There are sixteen levels, −8 to 7 times a scale that takes its sign from the largest number.
    """

    group = 32
    """docs/wire-formats.md says why."""

    def pack(self, rows: Float[Tensor, "m n"]) -> UInt8[Tensor, "m _"]:
        """Round to the scale."""
        levels, scales = _to_levels(rows.float().view(len(rows), -1, self.group))
        return torch.cat([_paired(levels).flatten(1), _as_bytes(scales)], 1)

    def unpack(self, packed: UInt8[Tensor, "m _"]) -> Float[Tensor, "m n"]:
        """Levels times scales."""
        half = self.group // 2
        count = packed.shape[1] * half // (half + 2)
        levels = _split(packed[:, :count].reshape(len(packed), -1, half))
        return _from_levels(levels, packed[:, count:]).flatten(1)


class TopK:
    """The 16 largest of every block: a byte for the place of each, and 4 bits for its number.

    They share a scale as in `Int4`. All others are sent as 0, so that they wait for their turn.
    """

    kept = 16
    """docs/wire-formats.md says why."""

    def pack(self, rows: Float[Tensor, "m n"]) -> UInt8[Tensor, "m _"]:
        """Choose and round."""
        blocks = rows.float().view(len(rows), -1, BLOCK)
        places = blocks.abs().topk(self.kept, dim=2, sorted=False).indices
        levels, scales = _to_levels(blocks.gather(2, places))
        places_ = places.to(torch.uint8).flatten(1)
        return torch.cat([places_, _paired(levels).flatten(1), _as_bytes(scales)], 1)

    def unpack(self, packed: UInt8[Tensor, "m _"]) -> Float[Tensor, "m n"]:
        """Numbers in their places, zeros elsewhere."""
        half = self.kept // 2
        blocks = packed.shape[1] // (self.kept + half + 2)
        sizes = [blocks * self.kept, blocks * half, blocks * 2]
        places, levels, scales = torch.split(packed, sizes, 1)
        numbers = _from_levels(_split(levels.reshape(len(packed), blocks, half)), scales)
        rows = numbers.new_zeros(len(packed), blocks, BLOCK)
        return rows.scatter_(2, places.reshape(numbers.shape).long(), numbers).flatten(1)


def _to_levels(
    groups: Float[Tensor, "m g n"],
) -> tuple[UInt8[Tensor, "m g n"], BFloat16Tensor[Tensor, "m g 1"]]:
    """Levels 0 to 15, and the scale of each group: the largest of it, through −8."""
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    scales = torch.where(high > -low, high, low).div_(-8).bfloat16()
    inverse = torch.where(scales == 0, 0.0, 1 / scales.float())
    return (groups * inverse).add_(8.5).clamp_(0, 15).to(torch.uint8), scales


def _from_levels(
    levels: UInt8[Tensor, "m g n"], scales: UInt8[Tensor, "m _"]
) -> Float[Tensor, "m g n"]:
    """The numbers that levels stand for."""
    wide = scales.contiguous().view(torch.bfloat16).float()
    return levels.float().sub_(8).mul_(wide[:, :, None])


def _paired(levels: UInt8[Tensor, "m g n"]) -> UInt8[Tensor, "m g h"]:
    """Two of them in a byte: one of the first half, one of the second."""
    first, second = levels.chunk(2, 2)
    return first | (second << 4)


def _split(pairs: UInt8[Tensor, "m g h"]) -> UInt8[Tensor, "m g n"]:
    """The first halves, then the second ones."""
    return torch.cat([pairs & 15, pairs >> 4], 2)


def _as_bytes(scales: BFloat16Tensor[Tensor, "m g 1"]) -> UInt8[Tensor, "m _"]:
    return scales.flatten(1).contiguous().view(torch.uint8)


@dataclass(frozen=True, slots=True)
class WireFormat:
    """What a number takes in a message, and what rounds it."""

    bytes_per_number: float
    codec: Codec | None = None
    """None where numbers are sent as they are."""


Wire = Literal["full", "bf16", "int8", "int4", "top-k"]

WIRE_FORMATS: dict[str, WireFormat] = {
    "full": WireFormat(4.0),
    "bf16": WireFormat(2.0, BFloat16()),
    "int8": WireFormat(1 + 4 / BLOCK, Int8()),
    "int4": WireFormat(1 / 2 + 2 / Int4.group, Int4()),
    "top-k": WireFormat((TopK.kept * 3 / 2 + 2) / BLOCK, TopK()),
}
