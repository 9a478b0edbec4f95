"""Convolutions with many channels for all workers, on Hopper's copy engine: bf16, stride 1."""

from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from partavg.engines.fused.channels import channels_first, channels_last
from partavg.engines.fused.convolution import any_channels
from partavg.engines.fused.convolution import many_channels_kernels as kernels
from partavg.engines.fused.convolution.box import Box, Sizes
from partavg.engines.fused.convolution.case import Pair
from partavg.engines.fused.dispatch import Convolution, weight_gradient_of_many_channels
from partavg.kernels.launch import launch

_BLOCK = 256  # pairs of channels whose taps a program turns


class ManyChannels(torch.autograd.Function):
    """conv2d; also returns its input, for others to use: their gradients are added on the way."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rim: Pair
    ) -> tuple[Tensor, Tensor]:
        x = channels_last(x)
        ctx.set_materialize_grads(False)
        ctx.bias, ctx.shape, ctx.rim = bias is not None, weight.shape, rim
        low = _tap_first(weight.detach(), x.dtype)
        ctx.save_for_backward(x, low)
        y = _convolve(x, low, bias, None, rim, back=False)
        return channels_first(y), channels_first(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, added: Tensor | None) -> Any:
        if grad is None:
            return added, None, None, None
        x, low = ctx.saved_tensors
        grad, rim = channels_last(grad), ctx.rim
        dx = None
        if ctx.needs_input_grad[0]:
            other = None if added is None else channels_last(added)
            dx = channels_first(_convolve(grad, low, None, other, rim, back=True))
        dbias = grad.sum((1, 2, 3), dtype=torch.float32) if ctx.bias else None
        if weight_gradient_of_many_channels(_sizes(grad)) == Convolution.MANY_CHANNELS:
            return dx, _weight_gradient(x, grad, ctx.shape, rim), dbias, None
        return dx, any_channels.weight_gradient(x, grad, ctx.shape[3:], 1, rim), dbias, None


def _sizes(x: Tensor) -> Sizes:
    """Of x [m, n, h, w, c]."""
    return x.shape[1], x.shape[2], x.shape[3]


def _convolve(
    x: Tensor, low: Tensor, bias: Tensor | None, added: Tensor | None, rim: Pair, *, back: bool
) -> Tensor:
    """Outputs, or input gradients, from weights [m, taps, k, c]."""
    workers, count = x.shape[:2]
    taps, outputs, inputs = low.shape[1:]
    side = round(taps**0.5)
    if back:
        outputs, inputs = inputs, outputs
        rim = side - 1 - rim[0], side - 1 - rim[1]
    height, width = (size + 2 * r - side + 1 for size, r in zip(x.shape[2:4], rim, strict=True))
    box = Box.of((count, height, width))
    blocks, tall, wide = box.grid((count, height, width))
    block_c = 64 if inputs % 64 == 0 or inputs > 128 else 32
    block_k = 128 if outputs % 128 == 0 else 64 if outputs >= 64 else 32
    y = x.new_empty(workers, count, height, width, outputs)
    filters = low.flatten(0, 1)
    launch(
        kernels.conv,
        (blocks * tall * wide * triton.cdiv(outputs, block_k), workers),
        (
            _described(x.flatten(0, 1), [*box, block_c]),
            _described(filters, [1, block_c, block_k] if back else [1, block_k, block_c]),
            _described((y if added is None else added).flatten(0, 1), [*box, block_k]),
            _described(y.flatten(0, 1), [*box, block_k]),
            x if bias is None else bias,
        ),
        {
            "images": count,
            "bias_stride": 0 if bias is None else bias.stride(0),
            "TALL": tall,
            "WIDE": wide,
            "PAD_H": rim[0],
            "PAD_W": rim[1],
        },
        C=inputs,
        K=outputs,
        SIDE=side,
        BACK=back,
        BIAS=bias is not None,
        ADD=added is not None,
        BN=box.images,
        BH=box.rows,
        BW=box.columns,
        BK=block_k,
        BC=block_c,
        num_warps=8 if block_k == 128 else 4,
        num_stages=4,
    )
    return y


def _weight_gradient(x: Tensor, grad: Tensor, shape: torch.Size, rim: Pair) -> Tensor:
    """[m, k, c, r, s] from the inputs and the outputs' gradient."""
    workers, outputs, inputs, side = shape[:4]
    box = Box.of(_sizes(grad))
    blocks, tall, wide = box.grid(_sizes(grad))
    block_c, block_k = (
        128 if size % 128 == 0 else 64 if size >= 64 else 32 for size in (inputs, outputs)
    )
    out = torch.empty((workers, side * side, outputs, inputs), device=x.device)
    tiles = side * side * triton.cdiv(outputs, block_k) * triton.cdiv(inputs, block_c)
    launch(
        kernels.conv_weight,
        (tiles, workers),
        (
            _described(x.flatten(0, 1), [*box, block_c]),
            _described(grad.flatten(0, 3), [box.pixels, block_k]),
            out,
        ),
        {
            "images": x.shape[1],
            "TALL": tall,
            "WIDE": wide,
            "PAD_H": rim[0],
            "PAD_W": rim[1],
            "BOXES": blocks * tall * wide,
        },
        C=inputs,
        K=outputs,
        SIDE=side,
        BN=box.images,
        BH=box.rows,
        BW=box.columns,
        BK=block_k,
        BC=block_c,
        num_warps=8 if block_k == block_c == 128 else 4,
        num_stages=3,
    )
    found = torch.empty(shape, device=x.device)
    grid = triton.cdiv(outputs * inputs, _BLOCK), workers
    launch(
        kernels.tap_last,
        grid,
        (out, found),
        {"channels": outputs * inputs},
        TAPS=side * side,
        T=triton.next_power_of_2(side * side),
        BLOCK=_BLOCK,
    )
    return found


def _tap_first(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights [m, k, c, r, s] as [m, taps, k, c]."""
    workers, outputs, inputs, *sides = weight.shape
    taps = sides[0] * sides[1]
    out = torch.empty((workers, taps, outputs, inputs), dtype=dtype, device=weight.device)
    grid = triton.cdiv(outputs * inputs, _BLOCK), workers
    launch(
        kernels.tap_first,
        grid,
        (weight, out),
        {"apart": weight.stride(0), "channels": outputs * inputs},
        TAPS=taps,
        T=triton.next_power_of_2(taps),
        BLOCK=_BLOCK,
    )
    return out


def _described(tensor: Tensor, block: list[int]) -> Any:
    return TensorDescriptor.from_tensor(tensor, block)
