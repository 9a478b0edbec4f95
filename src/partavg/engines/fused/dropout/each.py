"""Dropout of each element by itself with Triton: masks are drawn again on the way back."""

from typing import Any

import torch
from torch import Tensor

from partavg.kernels.dropout import drop


class DropEach(torch.autograd.Function):
    """Drops elements of x [m, n, …] with keys [m]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.p = p
        return drop(x, keys, p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (keys,) = ctx.saved_tensors
        return drop(grad, keys, ctx.p), None, None
