"""Random bits in Triton's kernels."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def bits24(key, counter):
    """As `seeds.bits24`: the counter-th random bits of a key, counted from 1."""
    state = counter.to(tl.uint64) * 0x9E3779B97F4A7C15 + key.to(tl.uint64)
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return ((state ^ (state >> 31)) >> 40).to(tl.int32)
