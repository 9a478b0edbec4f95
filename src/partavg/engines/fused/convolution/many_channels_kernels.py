"""Triton kernels for convolutions with many channels: tiles come by the copy engine of the GPU.

Tiles are boxes of activations [m · n, h, w, c] that the copy engine cuts out, with zeros where a
box reaches over an edge: so a tap is the same box a little aside, and no address is computed. The
box is the right factor of a product: as the left one Triton would take it through registers.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

# Kernels for every size, or some for 1 and others for multiples of 16, would take long to compile.
_SIZES = ["images", "bias_stride", "TALL", "WIDE", "PAD_H", "PAD_W"]


@triton.jit(do_not_specialize=_SIZES)
def conv(
    x,
    weight,
    added,
    y,
    bias,
    images,
    bias_stride,
    TALL,
    WIDE,
    PAD_H,
    PAD_W,
    C: tl.constexpr,
    K: tl.constexpr,
    SIDE: tl.constexpr,
    BACK: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    BN: tl.constexpr,
    BH: tl.constexpr,
    BW: tl.constexpr,
    BK: tl.constexpr,
    BC: tl.constexpr,
):
    """Outputs [m · n, h, w, K] from weights [m · taps, K, C].

    BACK, it is an input gradient: x has the outputs' gradient, weights [m · taps, C, K] are read in
    reverse.
    """
    BLOCKS_K: tl.constexpr = (K + BK - 1) // BK
    BLOCKS_C: tl.constexpr = (C + BC - 1) // BC
    k = tl.program_id(0) % BLOCKS_K * BK
    box = tl.program_id(0) // BLOCKS_K
    worker = tl.program_id(1)
    w = box % WIDE * BW
    h = box // WIDE % TALL * BH
    n = worker * images + box // (WIDE * TALL) * BN
    acc = tl.zeros((BK, BN * BH * BW), dtype=tl.float32)
    for step in range(SIDE * SIDE * BLOCKS_C):
        tap = step // BLOCKS_C
        c = step % BLOCKS_C * BC
        a = x.load([n, h + tap // SIDE - PAD_H, w + tap % SIDE - PAD_W, c])
        a = tl.trans(tl.reshape(a, (BN * BH * BW, BC)))
        if BACK:
            b = weight.load([worker * SIDE * SIDE + SIDE * SIDE - 1 - tap, c, k])
            b = tl.trans(tl.reshape(b, (BC, BK)))
        else:
            b = tl.reshape(weight.load([worker * SIDE * SIDE + tap, k, c]), (BK, BC))
        acc = tl.dot(b, a, acc)
    if BIAS:
        j = k + tl.arange(0, BK)
        acc += tl.load(bias + worker * bias_stride + j, mask=j < K, other=0.0)[:, None]
    found = tl.trans(acc)
    if ADD:
        other = added.load([n, h, w, k])
        found += tl.reshape(other, (BN * BH * BW, BK)).to(tl.float32)
    y.store([n, h, w, k], tl.reshape(found.to(y.dtype), (BN, BH, BW, BK)))


@triton.jit(do_not_specialize=["images", "TALL", "WIDE", "PAD_H", "PAD_W", "BOXES"])
def conv_weight(
    x,
    grad,
    out,
    images,
    TALL,
    WIDE,
    PAD_H,
    PAD_W,
    BOXES,
    C: tl.constexpr,
    K: tl.constexpr,
    SIDE: tl.constexpr,
    BN: tl.constexpr,
    BH: tl.constexpr,
    BW: tl.constexpr,
    BK: tl.constexpr,
    BC: tl.constexpr,
):
    """The weights' gradient [m, taps, K, C] over all pixels of a worker.

    The outputs' gradient is [m · pixels, K]: boxes must be without gaps.
    """
    BLOCKS_K: tl.constexpr = (K + BK - 1) // BK
    BLOCKS_C: tl.constexpr = (C + BC - 1) // BC
    k = tl.program_id(0) % BLOCKS_K * BK
    c = tl.program_id(0) // BLOCKS_K % BLOCKS_C * BC
    tap = tl.program_id(0) // (BLOCKS_K * BLOCKS_C)
    worker = tl.program_id(1)
    acc = tl.zeros((BK, BC), dtype=tl.float32)
    for box in range(BOXES):
        w = box % WIDE * BW
        h = box // WIDE % TALL * BH
        n = worker * images + box // (WIDE * TALL) * BN
        g = grad.load([(worker * BOXES + box) * (BN * BH * BW), k])
        a = x.load([n, h + tap // SIDE - PAD_H, w + tap % SIDE - PAD_W, c])
        acc = tl.dot(tl.trans(g), tl.reshape(a, (BN * BH * BW, BC)), acc)
    i = k + tl.arange(0, BK)
    j = c + tl.arange(0, BC)
    at = (((worker * SIDE * SIDE + tap).to(tl.int64) * K + i) * C)[:, None] + j[None, :]
    tl.store(out + at, acc, mask=(i < K)[:, None] & (j < C)[None, :])


@triton.jit(do_not_specialize=["apart", "channels"])
def tap_first(
    weight, out, apart, channels, TAPS: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr
):
    """Weights [m, K · C, TAPS] as [m, TAPS, K · C]."""
    worker = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    t = tl.arange(0, T)
    mask = (j < channels)[:, None] & (t < TAPS)[None, :]
    value = tl.load(weight + worker * apart + j[:, None] * TAPS + t[None, :], mask=mask)
    place = (worker * TAPS + t)[:, None] * channels + j[None, :]
    mask = (j < channels)[None, :] & (t < TAPS)[:, None]
    tl.store(out + place, tl.trans(value).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["channels"])
def tap_last(grad, out, channels, TAPS: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr):
    """Gradients [m, TAPS, K · C] as [m, K · C, TAPS]."""
    worker = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    t = tl.arange(0, T)
    mask = (j < channels)[None, :] & (t < TAPS)[:, None]
    value = tl.load(grad + (worker * TAPS + t)[:, None] * channels + j[None, :], mask=mask)
    mask = (j < channels)[:, None] & (t < TAPS)[None, :]
    place = (worker * channels + j)[:, None] * TAPS + t[None, :]
    tl.store(out + place, tl.trans(value), mask=mask)
