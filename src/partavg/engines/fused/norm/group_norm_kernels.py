"""Triton kernels for activations [m, n, …, c]: GroupNorm with what follows it.

A program has some groups of a sample, whole, and goes over them twice, block after block: the
second time they come from a cache. A group takes BD columns of a block, of which D are channels.
Nothing is added up atomically, so that every kernel gives the same bits every time.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

_SIZES = ["pixels", "weight_stride", "bias_stride", "eps"]


@triton.jit(do_not_specialize=_SIZES)
def group_norm(
    x,
    weight,
    bias,
    residual,
    y,
    mean_out,
    rstd_out,
    pixels,
    weight_stride,
    bias_stride,
    eps,
    C: tl.constexpr,
    D: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    BG: tl.constexpr,
    BD: tl.constexpr,
    BP: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Normalize some groups of a sample by their own means and 1 / σ; add; ReLU."""
    worker = tl.program_id(2).to(tl.int64)
    sample = worker * tl.num_programs(0) + tl.program_id(0)
    column = tl.arange(0, BG * BD)
    group = tl.program_id(1) * BG + column // BD
    if D == BD:  # said in this way, so that the compiler sees neighbours
        c = tl.program_id(1) * (BG * BD) + column
        there = c < C
    else:
        c = group * D + column % BD
        there = (column % BD < D) & (c < C)
    start = sample * pixels * C
    x += start
    # Sums of what is left when any one pixel is taken off: close to the mean, it cancels less.
    origin = tl.load(x + c, mask=there, other=0.0).to(tl.float32)
    total = tl.zeros((BP, BG * BD), dtype=tl.float32)
    square = tl.zeros((BP, BG * BD), dtype=tl.float32)
    for number in range(BLOCKS):
        p = number * BP + tl.arange(0, BP)
        place = p[:, None] * C + c[None, :]
        mask = (p < pixels)[:, None] & there[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - origin[None, :], 0.0)
        total += value
        square += value * value
    left = tl.sum(total, 0)
    means = origin + left / pixels
    mean = tl.sum(tl.reshape(means, (BG, BD)), 1) / D
    mean = tl.reshape(tl.broadcast_to(mean[:, None], (BG, BD)), (BG * BD,))
    away = tl.where(there, means - mean, 0.0)
    spread = tl.sum(square, 0) - left * left / pixels + away * away * pixels
    rstd = 1 / tl.sqrt(tl.sum(tl.reshape(spread, (BG, BD)), 1) / (D * pixels) + eps)
    rstd = tl.reshape(tl.broadcast_to(rstd[:, None], (BG, BD)), (BG * BD,))
    first = there & (column % BD == 0)
    tl.store(mean_out + sample * (C // D) + group, mean, mask=first)
    tl.store(rstd_out + sample * (C // D) + group, rstd, mask=first)
    scale = rstd
    if WEIGHT:
        gamma = tl.load(weight + worker * weight_stride + c, mask=there, other=0.0)
        scale = rstd * gamma.to(tl.float32)
    shift = -mean * scale
    if BIAS:
        beta = tl.load(bias + worker * bias_stride + c, mask=there, other=0.0)
        shift += beta.to(tl.float32)
    residual += start
    y += start
    for number in range(BLOCKS):
        p = number * BP + tl.arange(0, BP)
        place = p[:, None] * C + c[None, :]
        mask = (p < pixels)[:, None] & there[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        value = value * scale[None, :] + shift[None, :]
        if RESIDUAL:
            value += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + place, value.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def group_norm_backward(
    x,
    y,
    grad,
    mean,
    rstd,
    weight,
    bias,
    dx,
    dresidual,
    sums,
    pixels,
    weight_stride,
    bias_stride,
    C: tl.constexpr,
    D: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    BG: tl.constexpr,
    BD: tl.constexpr,
    BP: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The gradients of some groups of a sample, of what was added, and the layer's of this one."""
    worker = tl.program_id(2).to(tl.int64)
    sample = worker * tl.num_programs(0) + tl.program_id(0)
    column = tl.arange(0, BG * BD)
    group = tl.program_id(1) * BG + column // BD
    if D == BD:  # said in this way, so that the compiler sees neighbours
        c = tl.program_id(1) * (BG * BD) + column
        there = c < C
    else:
        c = group * D + column % BD
        there = (column % BD < D) & (c < C)
    center = tl.load(mean + sample * (C // D) + group, mask=there, other=0.0)
    factor = tl.load(rstd + sample * (C // D) + group, mask=there, other=0.0)
    scale = factor
    if WEIGHT:
        gamma = tl.load(weight + worker * weight_stride + c, mask=there, other=0.0)
        scale = factor * gamma.to(tl.float32)
    shift = -center * scale
    if BIAS:
        beta = tl.load(bias + worker * bias_stride + c, mask=there, other=0.0)
        shift += beta.to(tl.float32)
    start = sample * pixels * C
    x += start
    y += start
    grad += start
    total = tl.zeros((BP, BG * BD), dtype=tl.float32)
    along = tl.zeros((BP, BG * BD), dtype=tl.float32)
    for number in range(BLOCKS):
        p = number * BP + tl.arange(0, BP)
        place = p[:, None] * C + c[None, :]
        mask = (p < pixels)[:, None] & there[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            if RESIDUAL:
                g = tl.where(tl.load(y + place, mask=mask, other=0.0) > 0, g, 0.0)
            else:
                g = tl.where(value * scale[None, :] + shift[None, :] > 0, g, 0.0)
        total += g
        along += g * (value - center[None, :])
    left, stretched = tl.sum(total, 0), tl.sum(along, 0)
    tl.store(sums + sample * (2 * C) + c, stretched * factor, mask=there)
    tl.store(sums + sample * (2 * C) + C + c, left, mask=there)
    rest = tl.sum(tl.reshape(left * scale, (BG, BD)), 1) / (D * pixels)
    rest = tl.reshape(tl.broadcast_to(rest[:, None], (BG, BD)), (BG * BD,))
    slope = tl.sum(tl.reshape(stretched * scale, (BG, BD)), 1) / (D * pixels)
    slope = tl.reshape(tl.broadcast_to(slope[:, None], (BG, BD)), (BG * BD,)) * factor * factor
    dx += start
    dresidual += start
    for number in range(BLOCKS):
        p = number * BP + tl.arange(0, BP)
        place = p[:, None] * C + c[None, :]
        mask = (p < pixels)[:, None] & there[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            if RESIDUAL:
                g = tl.where(tl.load(y + place, mask=mask, other=0.0) > 0, g, 0.0)
            else:
                g = tl.where(value * scale[None, :] + shift[None, :] > 0, g, 0.0)
        if RESIDUAL:
            tl.store(dresidual + place, g.to(dresidual.dtype.element_ty), mask=mask)
        value = g * scale[None, :] - (value - center[None, :]) * slope[None, :] - rest[None, :]
        tl.store(dx + place, value.to(dx.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["samples", "weight_stride", "bias_stride"])
def sums_of_samples(
    sums,
    of_weight,
    of_bias,
    samples,
    weight_stride,
    bias_stride,
    C: tl.constexpr,
    BC: tl.constexpr,
    BS: tl.constexpr,
):
    """The gradients of a layer's weight and bias, from those of each sample."""
    worker = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    along = tl.zeros((BS, BC), dtype=tl.float32)
    total = tl.zeros((BS, BC), dtype=tl.float32)
    for first in range(0, samples, BS):
        sample = first + tl.arange(0, BS)
        mask = (sample < samples)[:, None] & (c < C)[None, :]
        place = sums + (worker * samples + sample)[:, None] * (2 * C) + c[None, :]
        along += tl.load(place, mask=mask, other=0.0)
        total += tl.load(place + C, mask=mask, other=0.0)
    kept = of_weight.dtype.element_ty
    tl.store(of_weight + worker * weight_stride + c, tl.sum(along, 0).to(kept), mask=c < C)
    tl.store(of_bias + worker * bias_stride + c, tl.sum(total, 0).to(kept), mask=c < C)
