"""Triton kernels for tokens [m, n, width]: LayerNorm and RMSNorm with the addition before them.

A tile holds some tokens of one worker, whole. Nothing is added up atomically, so that every kernel
gives the same bits every time.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

_SIZES = ["count", "width", "weight_stride", "bias_stride", "eps", "per"]


@triton.jit(do_not_specialize=_SIZES)
def token_norm(
    x,
    other,
    weight,
    bias,
    total,
    y,
    statistics,
    count,
    width,
    weight_stride,
    bias_stride,
    eps,
    ADDS: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    RMS: tl.constexpr,
    TALL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum of x and the other one, if there is one, and that normalized; means and 1 / σ."""
    worker = tl.program_id(1).to(tl.int64)
    workers = tl.num_programs(1).to(tl.int64)
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    j = tl.arange(0, BLOCK)
    mask = (row < count)[:, None] & (j < width)[None, :]
    place = (worker * count + row)[:, None] * width + j[None, :]
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    if ADDS:
        value += tl.load(other + place, mask=mask, other=0.0).to(tl.float32)
        value = value.to(total.dtype.element_ty)  # what others read is what is normalized
        tl.store(total + place, value, mask=mask)
        value = value.to(tl.float32)
    if RMS:
        mean = tl.zeros((TALL,), dtype=tl.float32)
    else:
        mean = tl.sum(value, 1) / width
        value = tl.where(mask, value - mean[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(value * value, 1) / width + eps)
    value = value * rstd[:, None]
    if WEIGHT:
        scale = tl.load(weight + worker * weight_stride + j, mask=j < width, other=0.0)
        value = value * scale.to(tl.float32)[None, :]
    if BIAS:
        shift = tl.load(bias + worker * bias_stride + j, mask=j < width, other=0.0)
        value = value + shift.to(tl.float32)[None, :]
    tl.store(y + place, value.to(y.dtype.element_ty), mask=mask)
    tl.store(statistics + worker * count + row, mean, mask=row < count)
    tl.store(statistics + (workers + worker) * count + row, rstd, mask=row < count)


@triton.jit(do_not_specialize=_SIZES)
def token_norm_backward(
    x,
    weight,
    statistics,
    grad,
    outer,
    dx,
    sums,
    count,
    width,
    weight_stride,
    per,
    OUTER: tl.constexpr,
    WEIGHT: tl.constexpr,
    RMS: tl.constexpr,
    TALL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of what was normalized, others' added; sums of those of weights and biases."""
    worker = tl.program_id(1).to(tl.int64)
    workers = tl.num_programs(1).to(tl.int64)
    j = tl.arange(0, BLOCK)
    scale = tl.full((BLOCK,), 1.0, dtype=tl.float32)
    if WEIGHT:
        scale = tl.load(weight + worker * weight_stride + j, mask=j < width, other=0.0)
        scale = scale.to(tl.float32)
    d_weight = tl.zeros((BLOCK,), dtype=tl.float32)
    d_bias = tl.zeros((BLOCK,), dtype=tl.float32)
    for tile in range(per):
        row = (tl.program_id(0) * per + tile) * TALL + tl.arange(0, TALL)
        here = row < count
        mask = here[:, None] & (j < width)[None, :]
        place = (worker * count + row)[:, None] * width + j[None, :]
        mean = tl.load(statistics + worker * count + row, mask=here, other=0.0)
        rstd = tl.load(statistics + (workers + worker) * count + row, mask=here, other=0.0)
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, (value - mean[:, None]) * rstd[:, None], 0.0)
        back = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
        d_weight += tl.sum(back * value, 0)
        d_bias += tl.sum(back, 0)
        back = back * scale[None, :]
        along = tl.sum(back * value, 1) / width
        found = back - value * along[:, None]
        if not RMS:
            found -= (tl.sum(back, 1) / width)[:, None]
        found = found * rstd[:, None]
        if OUTER:
            found += tl.load(outer + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx + place, found.to(dx.dtype.element_ty), mask=mask)
    programs = tl.num_programs(0)
    where = sums + (worker * 2 * programs + tl.program_id(0)) * width + j
    tl.store(where, d_weight, mask=j < width)
    tl.store(where + programs * width, d_bias, mask=j < width)
