"""Triton kernels for activations [m, n, h, w, c]: convolutions as implicit matrix products.

A tile holds pixels × channels of one worker. Nothing is added up atomically, so that every kernel
gives the same bits every time.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

# Kernels for every size, or some for 1 and others for multiples of 16, would take long to compile.
_SIZE_NAMES = (
    "count H W R S HO WO STRIDE PAD_H PAD_W FILTER_R FILTER_S FIRST_R FIRST_S STEP OUT_H OUT_W "
    "OFF_H OFF_W BLOCKS bias_stride pixels tiles PER stride running_stride eps momentum"
)
_SIZES = _SIZE_NAMES.split()


@triton.jit(do_not_specialize=_SIZES)
def conv(
    x,
    weight,
    bias,
    added,
    y,
    count,
    bias_stride,
    H,
    W,
    C: tl.constexpr,
    K: tl.constexpr,
    R,
    S,
    HO,
    WO,
    STRIDE,
    PAD_H,
    PAD_W,
    FILTER_R,
    FILTER_S,
    FIRST_R,
    FIRST_S,
    STEP,
    OUT_H,
    OUT_W,
    OFF_H,
    OFF_W,
    TRANSPOSED: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    TAP: tl.constexpr,
    PRECISION: tl.constexpr,
    BP: tl.constexpr,
    BK: tl.constexpr,
    BQ: tl.constexpr,
):
    """Convolve: y [n, HO, WO, K] of each worker from x [n, H, W, C] and weights [R, S, C, K].

    Transposed, it is an input gradient: x is the outputs' gradient and the weights are read
    flipped, as [K, C] for each tap, every STEP-th tap from the first; pixels are written STEP
    apart from (OFF_H, OFF_W) on into [n, OUT_H, OUT_W, K]. In TAP mode a block of channels
    belongs to one tap, otherwise it is a piece of a row of the window, whose S · C elements lie
    side by side.
    """
    worker = tl.program_id(2).to(tl.int64)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    j = p % WO
    i = (p // WO) % HO
    n = p // (WO * HO)
    valid = p < count * HO * WO
    x += worker * count * H * W * C
    weight += worker * FILTER_R * FILTER_S * C * K
    row0 = i * STRIDE - PAD_H
    col0 = j * STRIDE - PAD_W
    BLOCKS = (S * C + BQ - 1) // BQ
    acc = tl.zeros((BP, BK), dtype=tl.float32)
    for block in range(R * BLOCKS):
        r = block // BLOCKS
        q0 = (block % BLOCKS) * BQ
        row = row0 + r
        inside = valid & (row >= 0) & (row < H)
        if TAP:
            s = q0 // C
            c = q0 % C + tl.arange(0, BQ)
            col = col0 + s
            inside = inside & (col >= 0) & (col < W)
            a = tl.load(
                x + (((n * H + row) * W + col) * C)[:, None] + c[None, :],
                mask=inside[:, None],
                other=0.0,
            )
            if TRANSPOSED:
                tap = (FIRST_R + STEP * (R - 1 - r)) * FILTER_S + FIRST_S + STEP * (S - 1 - s)
                b = tl.load(
                    weight + (tap * K + k)[None, :] * C + c[:, None],
                    mask=(k < K)[None, :],
                    other=0.0,
                )
            else:
                b = tl.load(
                    weight + ((r * S + s) * C + c)[:, None] * K + k[None, :],
                    mask=(k < K)[None, :],
                    other=0.0,
                )
        else:
            q = q0 + tl.arange(0, BQ)
            place = (col0 * C)[:, None] + q[None, :]
            a = tl.load(
                x + ((n * H + row) * (W * C))[:, None] + place,
                mask=inside[:, None] & (place >= 0) & (place < W * C) & (q < S * C)[None, :],
                other=0.0,
            )
            b = tl.load(
                weight + (r * S * C + q)[:, None] * K + k[None, :],
                mask=(q < S * C)[:, None] & (k < K)[None, :],
                other=0.0,
            )
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + worker * bias_stride + k, mask=k < K, other=0.0)[None, :]
    h = i * STEP + OFF_H
    w = j * STEP + OFF_W
    out = (((n * OUT_H + h) * OUT_W + w) * K)[:, None] + k[None, :]
    out += worker * count * OUT_H * OUT_W * K
    mask = (valid & (h < OUT_H) & (w < OUT_W))[:, None] & (k < K)[None, :]
    if ADD:
        acc += tl.load(added + out, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + out, acc.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def conv_weight(
    x,
    grad,
    out,
    count,
    BLOCKS,
    H,
    W,
    C: tl.constexpr,
    K: tl.constexpr,
    R,
    S,
    HO,
    WO,
    STRIDE,
    PAD_H,
    PAD_W,
    PRECISION: tl.constexpr,
    BP: tl.constexpr,
    BK: tl.constexpr,
    BQ: tl.constexpr,
):
    """The weights' gradient [K, C, R, S] of each worker over some of the pixels.

    A tile is a piece of one row of the window × channels of `grad` [n, HO, WO, K].
    """
    BLOCKS_Q = (S * C + BQ - 1) // BQ
    BLOCKS_K: tl.constexpr = (K + BK - 1) // BK
    tile = tl.program_id(0)
    split = tl.program_id(1)
    worker = tl.program_id(2).to(tl.int64)
    k = (tile % BLOCKS_K) * BK + tl.arange(0, BK)
    q = (tile // BLOCKS_K) % BLOCKS_Q * BQ + tl.arange(0, BQ)
    r = tile // (BLOCKS_K * BLOCKS_Q)
    x += worker * count * H * W * C
    grad += worker * count * HO * WO * K
    last = count * HO * WO
    acc = tl.zeros((BQ, BK), dtype=tl.float32)
    for block in range(BLOCKS):
        p = (split * BLOCKS + block) * BP + tl.arange(0, BP)
        j = p % WO
        i = (p // WO) % HO
        n = p // (WO * HO)
        row = i * STRIDE - PAD_H + r
        inside = (p < last) & (row >= 0) & (row < H)
        place = ((j * STRIDE - PAD_W) * C)[:, None] + q[None, :]
        a = tl.load(
            x + ((n * H + row) * (W * C))[:, None] + place,
            mask=inside[:, None] & (place >= 0) & (place < W * C) & (q < S * C)[None, :],
            other=0.0,
        )
        g = tl.load(
            grad + p[:, None] * K + k[None, :],
            mask=(p < last)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        acc = tl.dot(tl.trans(a), g, acc, input_precision=PRECISION)
    s = q // C
    c = q % C
    out += (split.to(tl.int64) * tl.num_programs(2) + worker) * K * C * R * S
    place = ((k[None, :] * C + c[:, None]) * R + r) * S + s[:, None]
    tl.store(out + place, acc, mask=(q < S * C)[:, None] & (k < K)[None, :])


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
    C: tl.constexpr,
    TILES: tl.constexpr,
    AFFINE: tl.constexpr,
    RUNNING: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
):
    """Normalize PER of a worker's pixels by the statistics of all tiles; add; ReLU."""
    tile = tl.program_id(0)
    worker = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    t = tl.arange(0, TILES)
    known = (t < tiles)[:, None] & (c < C)[None, :]
    where = partial + (worker * tiles + t)[:, None] * (2 * C) + c[None, :]
    means = tl.load(where, mask=known, other=0.0)
    squares = tl.load(where + C, mask=known, other=0.0)
    count = tl.where(t < tiles, tl.minimum(PER, pixels - t * PER), 0).to(tl.float32)[:, None]
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
    dx,
    dresidual,
    dweight,
    dbias,
    pixels,
    stride,
    tiles,
    PER,
    C: tl.constexpr,
    TILES: tl.constexpr,
    AFFINE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
):
    """The gradients of PER of a worker's pixels, of what was added to them, and of the layer."""
    tile = tl.program_id(0)
    worker = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    t = tl.arange(0, TILES)
    known = (t < tiles)[:, None] & (c < C)[None, :]
    where = partial + (worker * tiles + t)[:, None] * (2 * C) + c[None, :]
    total = tl.sum(tl.load(where, mask=known, other=0.0), 0)
    along = tl.sum(tl.load(where + C, mask=known, other=0.0), 0)
    if AFFINE and tile == 0:
        tl.store(dbias + worker * C + c, total, mask=c < C)
        tl.store(dweight + worker * C + c, along, mask=c < C)
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
        tl.store(dx + place, value.to(dx.dtype.element_ty), mask=mask)
