"""Dropout of all workers with Triton: masks are drawn twice instead of kept."""

from typing import Any

import torch
import triton
from torch import Tensor

from partavg.engines.fused.dropout import keyed_kernels as kernels
from partavg.kernels.launch import launch

_BLOCK = 1024


class Keyed(torch.autograd.Function):
    """Drops a share p of x [m, …], which lies in one piece, by keys [m]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, p: float) -> Tensor:
        """What stays, scaled."""
        ctx.save_for_backward(keys)
        ctx.p = p
        return _dropped(x, keys, p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of what stayed, scaled likewise."""
        (keys,) = ctx.saved_tensors
        return _dropped(grad.contiguous(), keys, ctx.p), None, None


def _dropped(x: Tensor, keys: Tensor, p: float) -> Tensor:
    y = torch.empty_like(x)
    count = x[0].numel()
    scale = torch.tensor(1 / (1 - p) if p < 1 else 0.0, dtype=x.dtype)  # rounded as x is
    launch(
        kernels.drop,
        (triton.cdiv(count, _BLOCK), len(x)),
        (x, keys, y),
        {"count": count, "least": round(p * 2**24)},
        scale=scale.item(),
        BLOCK=_BLOCK,
    )
    return y
