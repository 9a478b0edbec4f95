"""The mean of all pixels with Triton, of activations that lie as [m, n, h, w, c]."""

from typing import Any

import torch
import triton
from torch import Tensor

from partavg.engines.fused.channels import channels_first, channels_last
from partavg.engines.fused.pool import kernels
from partavg.kernels.launch import launch

_TILE = 2048  # numbers that a program holds at a time


class MeanOfPixels(torch.autograd.Function):
    """The mean of each channel's pixels [m, n, c, 1, 1]; its gradient lies as x does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = channels_last(x)
        ctx.shape = x.shape
        y = x.new_empty(*x.shape[:2], 1, 1, x.shape[-1])
        _launch(kernels.mean, x, y)
        return channels_first(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        dx = grad.new_empty(ctx.shape)
        _launch(kernels.mean_way_back, dx, channels_last(grad))
        return channels_first(dx)


def _launch(kernel: Any, whole: Tensor, one: Tensor) -> None:
    workers, count, height, width, channels = whole.shape
    pixels = height * width
    block = min(128, int(triton.next_power_of_2(channels)))
    launch(
        kernel,
        (workers * count, triton.cdiv(channels, block)),
        (whole, one),
        {"pixels": pixels},
        C=channels,
        BP=min(_TILE // block, int(triton.next_power_of_2(pixels))),
        BC=block,
    )
