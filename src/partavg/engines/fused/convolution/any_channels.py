"""Convolutions of all workers with Triton, on activations that lie as [m, n, h, w, c]."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from partavg.engines.fused.channels import channels_first, channels_last
from partavg.engines.fused.convolution import any_channels_kernels as kernels
from partavg.engines.fused.convolution.case import Pair
from partavg.kernels.launch import launch


def four_channels(x: Tensor) -> Tensor:
    """Images [m, n, c, h, w] of up to 4 channels as [m, n, h, w, 4]."""
    workers, count, channels, height, width = x.shape
    y = x.new_empty(workers, count, height, width, 4)
    sizes = {"channels": channels, "pixels": height * width}
    grid = workers * count, triton.cdiv(height * width, 1024)  # only the first may be large
    launch(kernels.pixels_first, grid, (x.contiguous(), y), sizes, BLOCK=1024)
    return y


def precision() -> str:
    """What products of float32 numbers are rounded to, as for torch's own convolutions."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


class AnyChannels(torch.autograd.Function):
    """conv2d; also returns its input, for others to use: their gradients are added on the way."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: Pair
    ) -> tuple[Tensor, Tensor]:
        x = channels_last(x)
        ctx.set_materialize_grads(False)
        ctx.stride, ctx.padding, ctx.bias = stride, padding, bias is not None
        workers, outputs, inputs, high, wide = weight.shape
        packed = torch.empty(
            (workers, high, wide, inputs, outputs), dtype=x.dtype, device=x.device
        ).copy_(weight.detach().permute(0, 3, 4, 2, 1))
        height, width = (
            (size + 2 * pad - reach) // stride + 1
            for size, pad, reach in zip(x.shape[2:4], padding, (high, wide), strict=True)
        )
        y = x.new_empty(workers, x.shape[1], height, width, outputs)
        _run(x, packed, y, _Part((high, wide), (height, width), stride, padding), bias=bias)
        ctx.save_for_backward(x, packed)
        return channels_first(y), channels_first(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, added: Tensor | None) -> Any:
        if grad is None:
            return added, None, None, None, None
        grad = channels_last(grad)
        x, packed = ctx.saved_tensors
        dx = _input_gradient(grad, packed, x, added, ctx) if ctx.needs_input_grad[0] else None
        dweight = weight_gradient(x, grad, packed.shape[1:3], ctx.stride, ctx.padding)
        dbias = grad.sum((1, 2, 3), dtype=torch.float32) if ctx.bias else None
        return None if dx is None else channels_first(dx), dweight, dbias, None, None


def _input_gradient(
    grad: Tensor, packed: Tensor, x: Tensor, added: Tensor | None, ctx: Any
) -> Tensor:
    """One convolution per class of pixels that see the same taps: stride² of them."""
    stride, taps = ctx.stride, packed.shape[1:3]
    dx = torch.empty_like(x) if taps[0] >= stride and taps[1] >= stride else torch.zeros_like(x)
    if added is not None:
        added = channels_last(added)
        if dx.numel() and not (taps[0] >= stride and taps[1] >= stride):
            dx.copy_(added)
    for off in ((a, b) for a in range(stride) for b in range(stride)):
        first = tuple((o + p) % stride for o, p in zip(off, ctx.padding, strict=True))
        seen = tuple(-(-(t - f) // stride) for t, f in zip(taps, first, strict=True))
        if min(seen) < 1:
            continue
        padding = tuple(
            n - 1 - (o + p) // stride for n, o, p in zip(seen, off, ctx.padding, strict=True)
        )
        grid = tuple(-(-(size - o) // stride) for size, o in zip(x.shape[2:4], off, strict=True))
        part = _Part(seen, grid, 1, padding, first, stride, off)
        _run(grad, packed, dx, part, added=added, transposed=True)
    return dx


class _Part(NamedTuple):
    """What one start of the kernel computes: all outputs, or every `step`-th of them both ways."""

    taps: Pair
    """High and wide, of those that the outputs see."""
    grid: Pair
    """High and wide, of the outputs."""
    stride: int
    padding: Pair
    first: Pair = (0, 0)
    """The first of these taps, and `step` from one to the next."""
    step: int = 1
    off: Pair = (0, 0)
    """The first of these outputs."""


def _run(
    x: Tensor,
    packed: Tensor,
    y: Tensor,
    part: _Part,
    *,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    transposed: bool = False,
) -> None:
    workers, count, height, width, inputs = x.shape
    outputs = y.shape[-1]
    pixels = count * part.grid[0] * part.grid[1]
    block_q = next((b for b in (64, 32, 16) if inputs % b == 0), 16)
    block_k = _block_k(outputs)
    block_p = 128 if pixels >= 128 else 64
    large = inputs >= 64 and outputs >= 64
    launch(
        kernels.conv,
        (triton.cdiv(pixels, block_p), triton.cdiv(outputs, block_k), workers),
        (x, packed, x if bias is None else bias, x if added is None else added, y),
        {
            "count": count,
            "bias_stride": 0 if bias is None else bias.stride(0),
            "H": height,
            "W": width,
            "R": part.taps[0],
            "S": part.taps[1],
            "HO": part.grid[0],
            "WO": part.grid[1],
            "STRIDE": part.stride,
            "PAD_H": part.padding[0],
            "PAD_W": part.padding[1],
            "FILTER_R": packed.shape[1],
            "FILTER_S": packed.shape[2],
            "FIRST_R": part.first[0],
            "FIRST_S": part.first[1],
            "STEP": part.step,
            "OUT_H": y.shape[2],
            "OUT_W": y.shape[3],
            "OFF_H": part.off[0],
            "OFF_W": part.off[1],
        },
        C=inputs,
        K=outputs,
        TRANSPOSED=transposed,
        BIAS=bias is not None,
        ADD=added is not None,
        TAP=inputs % block_q == 0,
        PRECISION=precision(),
        BP=block_p,
        BK=block_k,
        BQ=block_q,
        num_warps=8 if block_k >= 128 else 4,
        num_stages=3 if large else 2,
    )


def weight_gradient(x: Tensor, grad: Tensor, taps: Any, stride: int, padding: Pair) -> Tensor:
    """[m, k, c, r, s] from x [m, n, h, w, c] and the outputs' gradient [m, n, h, w, k]."""
    workers, count, height, width, inputs = x.shape
    high, wide = taps
    rows, columns, outputs = grad.shape[2:]
    pixels = count * rows * columns
    block_q = min(64, triton.next_power_of_2(max(16, wide * inputs)))
    block_k = _block_k(outputs)
    block_p = 64
    tiles = high * triton.cdiv(wide * inputs, block_q) * triton.cdiv(outputs, block_k)
    splits = max(1, min(8, 2048 // (tiles * workers), pixels // (4 * block_p)))
    each = triton.cdiv(triton.cdiv(pixels, splits), block_p) * block_p
    splits = triton.cdiv(pixels, each)
    out = torch.empty(
        (splits, workers, outputs, inputs, high, wide), dtype=torch.float32, device=x.device
    )
    launch(
        kernels.conv_weight,
        (tiles, splits, workers),
        (x, grad, out),
        {
            "count": count,
            "BLOCKS": each // block_p,
            "H": height,
            "W": width,
            "R": high,
            "S": wide,
            "HO": rows,
            "WO": columns,
            "STRIDE": stride,
            "PAD_H": padding[0],
            "PAD_W": padding[1],
        },
        C=inputs,
        K=outputs,
        PRECISION=precision(),
        BP=block_p,
        BK=block_k,
        BQ=block_q,
        num_warps=4,
        num_stages=3,
    )
    return out[0] if splits == 1 else out.sum(0)


def _block_k(outputs: int) -> int:
    """The largest tile that wastes little."""
    if outputs < 64:
        return int(triton.next_power_of_2(max(16, outputs)))
    return 128 if outputs % 128 == 0 else 64
