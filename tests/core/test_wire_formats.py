import pytest
import torch

from partavg.core.wire_formats import BLOCK, WIRE_FORMATS, Codec

ROUNDED = {name: wire for name, wire in WIRE_FORMATS.items() if wire.codec}
ERROR = {"bf16": 2**-8, "int8": 0.5 / 127}
"""Of a number, as a share of the largest in its block."""


def codec_of(name: str) -> Codec:
    codec = ROUNDED[name].codec
    assert codec
    return codec


def test_numbers_in_full_are_float32() -> None:
    assert WIRE_FORMATS["full"].bytes_per_number == torch.float32.itemsize
    assert set(ROUNDED) == set(ERROR), "everything else is tested below"


@pytest.mark.parametrize("name", ROUNDED)
def test_a_message_is_as_long_as_the_table_says(name: str) -> None:
    rows = torch.randn(3, 5 * BLOCK)
    assert codec_of(name).pack(rows).nbytes == rows.numel() * ROUNDED[name].bytes_per_number


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_close_and_rounds_once(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 4 * BLOCK, generator=generator, dtype=dtype)
    rows *= torch.logspace(-6, 6, 12, dtype=dtype).repeat_interleave(BLOCK).view(3, -1)
    codec = codec_of(name)
    rounded = codec.unpack(codec.pack(rows))
    blocks, errors = rows.view(3, -1, BLOCK), (rounded - rows).view(3, -1, BLOCK)
    largest = blocks.abs().amax(2, keepdim=True)
    assert (errors.abs() <= ERROR[name] * largest * (1 + 1e-6)).all()
    torch.testing.assert_close(codec.unpack(codec.pack(rounded)), rounded, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ROUNDED)
def test_zeros_stay_zeros(name: str) -> None:
    codec = codec_of(name)
    rows = torch.zeros(2, BLOCK)
    assert torch.equal(codec.unpack(codec.pack(rows)), rows)
