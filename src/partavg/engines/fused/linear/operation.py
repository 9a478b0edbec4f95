"""nn.Linear for all workers at once."""

from typing import Any

import torch
from torch import Tensor

from partavg.engines.fused import dispatch
from partavg.engines.fused.dispatch import device_of
from partavg.engines.fused.rows import Rows


def run(layer: Any, rows: Rows, name: str, x: Tensor) -> Tensor:
    """The layer's outputs for x [m, n, …, i]."""
    weight, bias = rows.tensor_of(name, "weight"), rows.maybe(name, "bias")
    flat = x.reshape(len(x), -1, x.shape[-1])
    y: Tensor = Product.apply(flat, weight)  # type: ignore[no-untyped-call]
    if bias is not None:
        y = y + rows.cast(bias)[:, None]
    return y.view(*x.shape[:-1], weight.shape[1])


class Product(torch.autograd.Function):
    """x [m, n, i] times the transposed weights [m, o, i], in x's dtype.

    Autograd itself would lay the weights' gradient out the other way round and round it first;
    turning the gradients of a wide layer takes longer than computing them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """The products."""
        low = _cast(weight, x.dtype)
        ctx.save_for_backward(x, low)
        ctx.dtype = weight.dtype
        return torch.bmm(x, low.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        """The gradients of x and, as they are kept, of the weights."""
        x, low = ctx.saved_tensors
        dx = torch.bmm(grad, low) if ctx.needs_input_grad[0] else None
        across = grad.transpose(1, 2)
        if dispatch.multiplies_into(grad.dtype, ctx.dtype, device_of(grad)):
            return dx, torch.bmm(across, x, out_dtype=ctx.dtype)
        return dx, torch.bmm(across, x).to(ctx.dtype)


def _cast(weight: Tensor, dtype: torch.dtype) -> Tensor:
    if not dispatch.casts_by_triton(weight, dtype, device_of(weight)):
        return weight.to(dtype)
    from partavg.kernels.cast import cast

    return cast(weight, dtype)
