import pytest
import torch

from partavg.core.wire_formats import BLOCK, WIRE_FORMATS, Codec

ROUNDED = {name: wire for name, wire in WIRE_FORMATS.items() if wire.codec}
ERROR = {"bf16": 2**-8, "int8": 0.5 / 127, "int4": 1 / 8 + 2**-8, "top-k": 1.0}
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


def test_four_bits_serve_numbers_of_different_size_in_one_block() -> None:
    """Each 32 have a scale, and its sign is that of the largest: half a level, or one of 16."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, BLOCK, generator=generator)
    rows *= torch.logspace(-6, 6, 2 * BLOCK // 32).repeat_interleave(32).view(2, -1)
    codec = codec_of("int4")
    groups = rows.view(2, -1, 32)
    errors = codec.unpack(codec.pack(rows)).view(2, -1, 32) - groups
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    level = largest.abs() / 8 * (1 + 2**-8)
    same_side = groups * largest.sign() > -6.5 / 8 * largest.abs()
    assert (errors.abs() <= torch.where(same_side, 0.5 + 8 * 2**-8, 1.0) * level).all()
    assert (errors.abs() <= 2**-8 * level * 8)[groups == largest].all()


def test_top_k_sends_the_largest_of_each_block() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 4 * BLOCK, generator=generator)
    codec = codec_of("top-k")
    blocks, sent = rows.view(-1, BLOCK), codec.unpack(codec.pack(rows)).view(-1, BLOCK)
    for block, kept in zip(blocks, sent, strict=True):
        places = block.abs().argsort(descending=True)
        assert set(places[:16].tolist()) == set(kept.nonzero().flatten().tolist())
        assert ((kept - block).abs()[places[:16]] <= (1 / 8 + 2**-8) * block.abs().max()).all()


@pytest.mark.parametrize("name", ROUNDED)
def test_tiny_and_huge_numbers_stay_finite(name: str) -> None:
    codec = codec_of(name)
    for size in (1e-45, 1e-39, 1e38):
        rows = torch.linspace(-size, size, BLOCK)[None]
        assert codec.unpack(codec.pack(rows)).isfinite().all()


@pytest.mark.parametrize("name", ROUNDED)
def test_zeros_stay_zeros(name: str) -> None:
    codec = codec_of(name)
    rows = torch.zeros(2, BLOCK)
    assert torch.equal(codec.unpack(codec.pack(rows)), rows)
