"""Triton kernels for dropout: draw, as `bits24` does, on the way.

Without `no_type_check` the checks of tests would hide one function from another.
"""
# mypy: ignore-errors

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _factor(key, i, least, scale):
    """The scale where the i-th 24 bits from a worker's key are enough, 0 elsewhere."""
    state = (i + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + key.to(tl.uint64, bitcast=True)
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    drawn = ((state ^ (state >> 31)) >> 40).to(tl.int32)
    return tl.where(drawn >= least, scale, 0.0)


@triton.jit(do_not_specialize=["count", "least", "scale"])
@no_type_check
def drop(x, keys, y, count, least, scale, BLOCK: tl.constexpr):
    """What stays of x [m, count], times the scale."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    worker = tl.program_id(1).to(tl.int64)
    value = tl.load(x + worker * count + i, mask=i < count, other=0.0).to(tl.float32)
    value *= _factor(tl.load(keys + worker), i, least, scale)
    tl.store(y + worker * count + i, value.to(y.dtype.element_ty), mask=i < count)


@triton.jit(do_not_specialize=["count", "pixels", "least", "scale"])
@no_type_check
def drop_pixels(
    x,
    keys,
    y,
    count,
    pixels,
    least,
    scale,
    C: tl.constexpr,
    TURNS: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
):
    """The same of x [m, count, pixels, C], with the masks of [m, count, C, pixels].

    Where it turns, x lies as the latter; what comes out never does.
    """
    tiles = tl.cdiv(pixels, BP)
    image = (tl.program_id(0) // tiles).to(tl.int64)
    p = tl.program_id(0) % tiles * BP + tl.arange(0, BP)[:, None]
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    mask = (p < pixels) & (c < C)
    first, last = c * pixels + p, p * C + c
    start = image * pixels * C
    value = tl.load(x + start + (first if TURNS else last), mask=mask, other=0.0).to(tl.float32)
    own = image % count * pixels * C  # of a worker's values
    value *= _factor(tl.load(keys + image // count), own + first, least, scale)
    tl.store(y + start + last, value.to(y.dtype.element_ty), mask=mask)
