"""Products with a weight matrix for each worker."""

from typing import Any

import torch
from torch import Tensor

from partavg.kernels.backend import uses_triton


class Product(torch.autograd.Function):
    """x [m, n, i] times the transposed weights [m, o, i], in x's dtype.

    Autograd itself would lay the weights' gradient out the other way round and round it first;
    turning the gradients of a wide layer takes longer than computing them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """The products."""
        low = _low(weight, x.dtype)
        ctx.save_for_backward(x, low)
        ctx.dtype = weight.dtype
        return torch.bmm(x, low.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        """The gradients of x and, as they are kept, of the weights."""
        x, low = ctx.saved_tensors
        dx = torch.bmm(grad, low) if ctx.needs_input_grad[0] else None
        across = grad.transpose(1, 2)
        if grad.is_cuda and grad.dtype != ctx.dtype:
            return dx, torch.bmm(across, x, out_dtype=ctx.dtype)
        return dx, torch.bmm(across, x).to(ctx.dtype)


def _low(weight: Tensor, dtype: torch.dtype) -> Tensor:
    if weight.dtype == dtype or not (uses_triton(weight) and weight[0].is_contiguous()):
        return weight.to(dtype)
    from partavg.kernels.cast import cast

    return cast(weight, dtype)
