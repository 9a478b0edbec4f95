"""Rotary positions with Triton, both ways in one kernel."""

from typing import Any

import torch
import triton
from torch import Tensor

from partavg.engines.fused.rotary import rotary_kernels as kernels
from partavg.kernels.launch import launch

_TILE = 2048  # elements of half a program's tile


class Rotary(torch.autograd.Function):
    """x [b, heads, t, d] turned by angles of cosines and sines [t, d / 2].

    The result lies as [b, t, heads, d] in memory, which attention turns back for nothing.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turned."""
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, back=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Turned back."""
        return _turned(grad, *ctx.saved_tensors, back=True), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> Tensor:
    if x.stride(-1) != 1:
        x = x.contiguous()
    samples, heads, length, width = x.shape
    y = x.new_empty(samples, length, heads, width).transpose(1, 2)
    half = triton.next_power_of_2(width // 2)
    tall = max(1, _TILE // half)
    launch(
        kernels.rotate,
        (triton.cdiv(length * heads, tall), samples),
        (x, cos.contiguous(), sin.contiguous(), y),
        {
            "length": length,
            "heads": heads,
            "width": width,
            "sample_stride": x.stride(0),
            "head_stride": x.stride(1),
            "token_stride": x.stride(2),
        },
        BACK=back,
        TALL=tall,
        HALF=half,
    )
    return y
