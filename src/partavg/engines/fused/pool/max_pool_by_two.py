"""Max pooling by 2 x 2 with Triton, on activations that lie as [m, n, h, w, c]."""

from typing import Any

import torch
import triton
from torch import Tensor

from partavg.engines.fused.channels import channels_first, channels_last
from partavg.engines.fused.pool import kernels
from partavg.kernels.launch import launch

_TILE = 2048  # outputs of a program


class MaxPoolByTwo(torch.autograd.Function):
    """The largest value of every window of 2 x 2; those at odd edges are cut.

    One byte per output is kept for the way back; torch keeps eight.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = channels_last(x)
        workers, count, height, width, channels = x.shape
        y = x.new_empty(workers, count, -(-height // 2), -(-width // 2), channels)
        place = torch.empty_like(y, dtype=torch.uint8)
        _launch(kernels.largest, x, y, place)
        ctx.save_for_backward(place)
        ctx.shape = x.shape
        return channels_first(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (place,) = ctx.saved_tensors
        dx = grad.new_empty(ctx.shape)
        _launch(kernels.way_back, dx, channels_last(grad), place)
        return channels_first(dx)


def _launch(kernel: Any, whole: Tensor, halved: Tensor, place: Tensor) -> None:
    height, width, channels = whole.shape[2:]
    block = min(128, int(triton.next_power_of_2(channels)))
    pixels = halved.numel() // channels
    launch(
        kernel,
        (triton.cdiv(pixels, _TILE // block), triton.cdiv(channels, block)),
        (whole, halved, place),
        {"pixels": pixels, "H": height, "W": width},
        C=channels,
        BP=_TILE // block,
        BC=block,
    )
