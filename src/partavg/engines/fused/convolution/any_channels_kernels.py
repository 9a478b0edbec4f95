"""Triton kernels for activations [m, n, h, w, c]: convolutions as implicit matrix products.

A tile holds pixels × channels of one worker. Nothing is added up atomically, so that every kernel
gives the same bits every time.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

# Kernels for every size, or some for 1 and others for multiples of 16, would take long to compile.
_SIZES = [
    "count",
    "H",
    "W",
    "R",
    "S",
    "HO",
    "WO",
    "STRIDE",
    "PAD_H",
    "PAD_W",
    "FILTER_R",
    "FILTER_S",
    "FIRST_R",
    "FIRST_S",
    "STEP",
    "OUT_H",
    "OUT_W",
    "OFF_H",
    "OFF_W",
    "BLOCKS",
    "bias_stride",
]


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


@triton.jit(do_not_specialize=["channels", "pixels"])
def pixels_first(x, y, channels, pixels, BLOCK: tl.constexpr):
    """Images [C, pixels] as [pixels, 4], with zeros for channels that there are not."""
    image = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    c = tl.arange(0, 4)[None, :]
    mask = (p < pixels) & (c < channels)
    value = tl.load(x + (image * channels + c) * pixels + p, mask=mask, other=0.0)
    tl.store(y + (image * pixels + p) * 4 + c, value, mask=p < pixels)
