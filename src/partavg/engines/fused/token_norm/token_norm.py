"""LayerNorm and RMSNorm of all workers with Triton, on tokens [m, n, width]."""

from typing import Any

import torch
import triton
from torch import Tensor

from partavg.engines.fused.token_norm import token_norm_kernels as kernels
from partavg.kernels.launch import launch

_TILE = 4096  # elements that a program holds at a time
_PROGRAMS = 1024  # at most, of all workers: each leaves sums that are added up in the end


class TokenNorm(torch.autograd.Function):
    """Adds two values, if there are two, and normalizes; gives the sum as well.

    Gradients of the sum by others are added up on the way.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        other: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        rms: bool,
    ) -> tuple[Tensor, Tensor]:
        """The sum and what it is normalized to."""
        x = x.contiguous()
        total = x if other is None else torch.empty_like(x)
        y = torch.empty_like(x)
        statistics = x.new_empty(2, *x.shape[:2], dtype=torch.float32)
        workers, count, width = x.shape
        block, tall = _tile(width)
        launch(
            kernels.token_norm,
            (triton.cdiv(count, tall), workers),
            (
                x,
                None if other is None else other.contiguous(),
                weight,
                bias,
                total,
                y,
                statistics,
            ),
            {"count": count, "width": width, **_strides(weight, bias)},
            eps=eps,
            ADDS=other is not None,
            WEIGHT=weight is not None,
            BIAS=bias is not None,
            RMS=rms,
            TALL=tall,
            BLOCK=block,
            num_warps=_warps(block * tall),
        )
        ctx.save_for_backward(total, weight, statistics)
        ctx.rms, ctx.dtypes = rms, [None if p is None else p.dtype for p in (weight, bias)]
        if other is None:
            total = x.view_as(x)
        ctx.set_materialize_grads(False)
        return total, y

    @staticmethod
    def backward(ctx: Any, outer: Tensor | None, grad: Tensor | None) -> tuple[Any, ...]:
        """The gradient of both values, and those of weights and biases."""
        x, weight, statistics = ctx.saved_tensors
        if grad is None:
            return outer, outer if ctx.needs_input_grad[1] else None, None, None, None, None
        workers, count, width = x.shape
        block, tall = _tile(width)
        tiles = triton.cdiv(count, tall)
        per = triton.cdiv(tiles, max(1, min(tiles, _PROGRAMS // workers)))
        programs = triton.cdiv(tiles, per)
        dx = torch.empty_like(x)
        sums = x.new_empty(workers, 2, programs, width, dtype=torch.float32)
        launch(
            kernels.token_norm_backward,
            (programs, workers),
            (
                x,
                weight,
                statistics,
                grad.contiguous(),
                None if outer is None else outer.contiguous(),
                dx,
                sums,
            ),
            {
                "count": count,
                "width": width,
                "weight_stride": 0 if weight is None else weight.stride(0),
                "per": per,
            },
            OUTER=outer is not None,
            WEIGHT=weight is not None,
            RMS=ctx.rms,
            TALL=tall,
            BLOCK=block,
            num_warps=_warps(block * tall),
        )
        total = sums.sum(2) if any(ctx.dtypes) else None
        affine = [
            None if dtype is None or total is None else total[:, at].to(dtype)
            for at, dtype in enumerate(ctx.dtypes)
        ]
        return dx, dx if ctx.needs_input_grad[1] else None, *affine, None, None


def _tile(width: int) -> tuple[int, int]:
    """How wide a tile is, and how many tokens high."""
    block = triton.next_power_of_2(width)
    return block, max(1, _TILE // block)


def _warps(elements: int) -> int:
    return 4 if elements <= 2048 else 8 if elements <= 8192 else 16


def _strides(weight: Tensor | None, bias: Tensor | None) -> dict[str, int]:
    return {
        "weight_stride": 0 if weight is None else weight.stride(0),
        "bias_stride": 0 if bias is None else bias.stride(0),
    }
