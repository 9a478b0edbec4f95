"""A Triton kernel for dropout: draws, as `bits24` does, on the way."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count", "least", "scale"])
def drop(x, keys, y, count, least, scale, BLOCK: tl.constexpr):
    """What stays of x [m, count], times the scale: where 24 bits from a worker's key are enough."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    worker = tl.program_id(1).to(tl.int64)
    key = tl.load(keys + worker).to(tl.uint64, bitcast=True)
    state = (i + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + key
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    drawn = ((state ^ (state >> 31)) >> 40).to(tl.int32)
    value = tl.load(x + worker * count + i, mask=i < count, other=0.0).to(tl.float32)
    value *= tl.where(drawn >= least, scale, 0.0)
    tl.store(y + worker * count + i, value.to(y.dtype.element_ty), mask=i < count)
