"""A Triton kernel that turns pairs of columns, one from either half of a head."""
# mypy: ignore-errors

import triton
import triton.language as tl

_SIZES = ["length", "heads", "width", "sample_stride", "head_stride", "token_stride"]


@triton.jit(do_not_specialize=_SIZES)
def rotate(
    x,
    cos,
    sin,
    y,
    length,
    heads,
    width,
    sample_stride,
    head_stride,
    token_stride,
    BACK: tl.constexpr,
    TALL: tl.constexpr,
    HALF: tl.constexpr,
):
    """Heads of x [b, heads, t, d], however they lie, to y [b, t, heads, d]."""
    sample = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    token = row // heads
    head = row % heads
    j = tl.arange(0, HALF)
    half = width // 2
    mask = (token < length)[:, None] & (j < half)[None, :]
    angle = token[:, None] * half + j[None, :]
    c = tl.load(cos + angle, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=mask, other=0.0).to(tl.float32)
    if BACK:
        s = -s
    place = x + sample * sample_stride + (head * head_stride + token * token_stride)[:, None]
    one = tl.load(place + j[None, :], mask=mask, other=0.0).to(tl.float32)
    two = tl.load(place + half + j[None, :], mask=mask, other=0.0).to(tl.float32)
    where = y + sample * length * heads * width + row[:, None] * width + j[None, :]
    tl.store(where, (one * c - two * s).to(y.dtype.element_ty), mask=mask)
    tl.store(where + half, (two * c + one * s).to(y.dtype.element_ty), mask=mask)
