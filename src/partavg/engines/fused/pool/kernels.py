"""Triton kernels for pooling of activations that lie as [images, h, w, c].

For the largest of 2 x 2 a tile holds outputs × channels; pixels of a window are counted 0 to 3, row
by row. For the mean it holds pixels × channels.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

_SIZES = ["pixels", "H", "W"]


@triton.jit(do_not_specialize=_SIZES)
def largest(x, y, place, pixels, H, W, C: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """The largest value of each window, and which of its pixels has it."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    wide = (W + 1) // 2
    high = (H + 1) // 2
    image = p // (wide * high)
    top = (p // wide - image * high) * 2
    left = p % wide * 2
    mask = (p < pixels)[:, None] & (c < C)[None, :]
    best = tl.full((BP, BC), float("-inf"), tl.float32)
    where = tl.zeros((BP, BC), tl.int32)
    for k in tl.static_range(4):
        inside = (top + k // 2 < H) & (left + k % 2 < W)
        pixel = (image.to(tl.int64) * H + top + k // 2) * W + left + k % 2
        at = pixel[:, None] * C + c[None, :]
        value = tl.load(x + at, mask=mask & inside[:, None], other=float("-inf")).to(tl.float32)
        better = (value > best) | (value != value)  # torch, too, prefers what is not a number
        best = tl.where(better, value, best)
        where = tl.where(better, k, where)
    to = p.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(y + to, best.to(y.dtype.element_ty), mask=mask)
    tl.store(place + to, where.to(tl.uint8), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def way_back(dx, grad, place, pixels, H, W, C: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """The gradient of every pixel: its window's, or nothing."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    wide = (W + 1) // 2
    high = (H + 1) // 2
    image = p // (wide * high)
    top = (p // wide - image * high) * 2
    left = p % wide * 2
    mask = (p < pixels)[:, None] & (c < C)[None, :]
    of = p.to(tl.int64)[:, None] * C + c[None, :]
    value = tl.load(grad + of, mask=mask, other=0.0)
    where = tl.load(place + of, mask=mask, other=0).to(tl.int32)
    for k in tl.static_range(4):
        inside = (top + k // 2 < H) & (left + k % 2 < W)
        pixel = (image.to(tl.int64) * H + top + k // 2) * W + left + k % 2
        to = pixel[:, None] * C + c[None, :]
        tl.store(dx + to, tl.where(where == k, value, 0.0), mask=mask & inside[:, None])


@triton.jit(do_not_specialize=["pixels"])
def mean(x, y, pixels, C: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """The mean of an image's pixels."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    total = tl.zeros((BP, BC), tl.float32)
    for first in range(0, pixels, BP):
        p = first + tl.arange(0, BP)
        mask = (p < pixels)[:, None] & (c < C)[None, :]
        at = (image * pixels + p)[:, None] * C + c[None, :]
        total += tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    value = tl.sum(total, 0) / pixels
    tl.store(y + image * C + c, value.to(y.dtype.element_ty), mask=c < C)


@triton.jit(do_not_specialize=["pixels"])
def mean_way_back(dx, grad, pixels, C: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """The gradient of every pixel: its share of the mean's."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    share = tl.load(grad + image * C + c, mask=c < C, other=0.0).to(tl.float32) / pixels
    value = tl.broadcast_to(share[None, :], (BP, BC)).to(dx.dtype.element_ty)
    for first in range(0, pixels, BP):
        p = first + tl.arange(0, BP)
        mask = (p < pixels)[:, None] & (c < C)[None, :]
        tl.store(dx + (image * pixels + p)[:, None] * C + c[None, :], value, mask=mask)
