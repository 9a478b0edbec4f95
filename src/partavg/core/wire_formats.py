"""How the numbers of a message travel: in full, or rounded to fewer bytes."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
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


@dataclass(frozen=True, slots=True)
class WireFormat:
    """What a number takes in a message, and what rounds it."""

    bytes_per_number: float
    codec: Codec | None = None
    """None where numbers are sent as they are."""


WIRE_FORMATS: dict[str, WireFormat] = {
    "full": WireFormat(4.0),
    "bf16": WireFormat(2.0, BFloat16()),
    "int8": WireFormat(1 + 4 / BLOCK, Int8()),
}
