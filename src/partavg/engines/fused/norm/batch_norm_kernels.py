"""Triton kernels for activations [m, n, h, w, c]: BatchNorm with what follows it.

A tile holds pixels × channels of one worker. Nothing is added up atomically, so that every kernel
gives the same bits every time.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

# Kernels for every size, or some for 1 and others for multiples of 16, would take long to compile.
_SIZES = ["pixels", "tiles", "PER", "OF", "stride", "apart", "running_stride", "eps", "momentum"]


@triton.jit(do_not_specialize=_SIZES)
def norm_statistics(x, partial, pixels, PER, C: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """Mean and sum of squared deviations of each channel over PER of a worker's pixels."""
    tile = tl.program_id(0)
    worker = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    x += worker * pixels * C
    first = tile * PER
    last = tl.minimum(first + PER, pixels)
    # Sums of what is left when any one pixel is taken off: close to the mean, it cancels less.
    origin = tl.load(x + first * C + c, mask=c < C, other=0.0).to(tl.float32)
    total = tl.zeros((BP, BC), dtype=tl.float32)
    square = tl.zeros((BP, BC), dtype=tl.float32)
    for block in range(PER // BP):
        p = first + block * BP + tl.arange(0, BP)
        mask = (p < last)[:, None] & (c < C)[None, :]
        value = tl.load(x + p[:, None] * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - origin[None, :], 0.0)
        total += value
        square += value * value
    count = (last - first).to(tl.float32)
    sums = tl.sum(total, 0)
    where = partial + ((worker * tl.num_programs(0) + tile) * 2) * C + c
    tl.store(where, origin + sums / count, mask=c < C)
    tl.store(where + C, tl.sum(square, 0) - sums * sums / count, mask=c < C)


@triton.jit(do_not_specialize=_SIZES)
def norm_apply(
    x,
    partial,
    weight,
    bias,
    residual,
    mean_out,
    rstd_out,
    running_mean,
    running_var,
    y,
    pixels,
    stride,
    running_stride,
    eps,
    momentum,
    tiles,
    PER,
    OF,
    C: tl.constexpr,
    TILES: tl.constexpr,
    AFFINE: tl.constexpr,
    RUNNING: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
):
    """Normalize PER of a worker's pixels by the statistics of tiles of OF pixels; add; ReLU."""
    tile = tl.program_id(0)
    worker = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    t = tl.arange(0, TILES)
    known = (t < tiles)[:, None] & (c < C)[None, :]
    where = partial + (worker * tiles + t)[:, None] * (2 * C) + c[None, :]
    means = tl.load(where, mask=known, other=0.0)
    squares = tl.load(where + C, mask=known, other=0.0)
    count = tl.where(t < tiles, tl.minimum(OF, pixels - t * OF), 0).to(tl.float32)[:, None]
    mean = tl.sum(means * count, 0) / pixels
    away = tl.where(known, means - mean[None, :], 0.0)
    var = (tl.sum(squares, 0) + tl.sum(away * away * count, 0)) / pixels
    rstd = 1 / tl.sqrt(var + eps)
    if tile == 0:
        tl.store(mean_out + worker * C + c, mean, mask=c < C)
        tl.store(rstd_out + worker * C + c, rstd, mask=c < C)
        if RUNNING:
            place = worker * running_stride + c
            old = tl.load(running_mean + place, mask=c < C, other=0.0)
            tl.store(running_mean + place, old + momentum * (mean - old), mask=c < C)
            old = tl.load(running_var + place, mask=c < C, other=0.0)
            unbiased = var * pixels / (pixels - 1)
            tl.store(running_var + place, old + momentum * (unbiased - old), mask=c < C)
    scale = rstd
    shift = -mean * rstd
    if AFFINE:
        gamma = tl.load(weight + worker * stride + c, mask=c < C, other=0.0)
        scale = rstd * gamma
        shift = tl.load(bias + worker * stride + c, mask=c < C, other=0.0) - mean * scale
    base = worker * pixels * C
    for block in range(PER // BP):
        p = tile * PER + block * BP + tl.arange(0, BP)
        mask = (p < pixels)[:, None] & (c < C)[None, :]
        place = base + p[:, None] * C + c[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        value = value * scale[None, :] + shift[None, :]
        if RESIDUAL:
            value += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + place, value.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def norm_reduce(
    x,
    y,
    grad,
    mean,
    rstd,
    weight,
    bias,
    partial,
    pixels,
    stride,
    PER,
    C: tl.constexpr,
    AFFINE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
):
    """Sums over PER of a worker's pixels of the gradient, and of it times the normalized input."""
    tile = tl.program_id(0)
    worker = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    center = tl.load(mean + worker * C + c, mask=c < C, other=0.0)[None, :]
    factor = tl.load(rstd + worker * C + c, mask=c < C, other=0.0)[None, :]
    gamma = tl.full((1, BC), 1.0, tl.float32)
    beta = tl.zeros((1, BC), dtype=tl.float32)
    if AFFINE:
        gamma = tl.load(weight + worker * stride + c, mask=c < C, other=0.0)[None, :]
        beta = tl.load(bias + worker * stride + c, mask=c < C, other=0.0)[None, :]
    total = tl.zeros((BP, BC), dtype=tl.float32)
    along = tl.zeros((BP, BC), dtype=tl.float32)
    base = worker * pixels * C
    for block in range(PER // BP):
        p = tile * PER + block * BP + tl.arange(0, BP)
        mask = (p < pixels)[:, None] & (c < C)[None, :]
        place = base + p[:, None] * C + c[None, :]
        normal = (tl.load(x + place, mask=mask, other=0.0).to(tl.float32) - center) * factor
        g = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            if RESIDUAL:
                g = tl.where(tl.load(y + place, mask=mask, other=0.0) > 0, g, 0.0)
            else:
                g = tl.where(normal * gamma + beta > 0, g, 0.0)
        total += g
        along += tl.where(mask, g * normal, 0.0)
    where = partial + ((worker * tl.num_programs(0) + tile) * 2) * C + c
    tl.store(where, tl.sum(total, 0), mask=c < C)
    tl.store(where + C, tl.sum(along, 0), mask=c < C)


@triton.jit(do_not_specialize=_SIZES)
def norm_backward(
    x,
    y,
    grad,
    mean,
    rstd,
    weight,
    bias,
    partial,
    beside,
    dx,
    dresidual,
    dweight,
    dbias,
    pixels,
    stride,
    apart,
    tiles,
    PER,
    C: tl.constexpr,
    TILES: tl.constexpr,
    AFFINE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    BESIDE: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
):
    """The gradients of PER of a worker's pixels, of what was added to them, and of the layer.

    The pixels' gradient by others that use them is added, if there is one.
    """
    tile = tl.program_id(0)
    worker = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    t = tl.arange(0, TILES)
    known = (t < tiles)[:, None] & (c < C)[None, :]
    where = partial + (worker * tiles + t)[:, None] * (2 * C) + c[None, :]
    total = tl.sum(tl.load(where, mask=known, other=0.0), 0)
    along = tl.sum(tl.load(where + C, mask=known, other=0.0), 0)
    if AFFINE and tile == 0:
        tl.store(dbias + worker * apart + c, total, mask=c < C)
        tl.store(dweight + worker * apart + c, along, mask=c < C)
    total = (total / pixels)[None, :]
    along = (along / pixels)[None, :]
    center = tl.load(mean + worker * C + c, mask=c < C, other=0.0)[None, :]
    factor = tl.load(rstd + worker * C + c, mask=c < C, other=0.0)[None, :]
    gamma = tl.full((1, BC), 1.0, tl.float32)
    beta = tl.zeros((1, BC), dtype=tl.float32)
    if AFFINE:
        gamma = tl.load(weight + worker * stride + c, mask=c < C, other=0.0)[None, :]
        beta = tl.load(bias + worker * stride + c, mask=c < C, other=0.0)[None, :]
    base = worker * pixels * C
    for block in range(PER // BP):
        p = tile * PER + block * BP + tl.arange(0, BP)
        mask = (p < pixels)[:, None] & (c < C)[None, :]
        place = base + p[:, None] * C + c[None, :]
        normal = (tl.load(x + place, mask=mask, other=0.0).to(tl.float32) - center) * factor
        g = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            if RESIDUAL:
                g = tl.where(tl.load(y + place, mask=mask, other=0.0) > 0, g, 0.0)
            else:
                g = tl.where(normal * gamma + beta > 0, g, 0.0)
        if RESIDUAL:
            tl.store(dresidual + place, g.to(dresidual.dtype.element_ty), mask=mask)
        value = gamma * factor * (g - total - normal * along)
        if BESIDE:
            value += tl.load(beside + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx + place, value.to(dx.dtype.element_ty), mask=mask)
