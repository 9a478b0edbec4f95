"""nn.Linear for all workers at once."""

from typing import Any

import torch
from torch import Tensor

from partavg.engines.fused import dispatch
from partavg.engines.fused.dispatch import device_of
from partavg.engines.fused.rows import Rows


def run(layer: Any, rows: Rows, name: str, x: Tensor) -> Tensor:
    """The layer's outputs for x [m, n, …, i]."""
    own = rows.tensor_of(name, "weight"), rows.maybe(name, "bias")
    return apply(rows, x, *own, rows.gradient_of(name, "weight"))


def apply(
    rows: Rows, x: Tensor, weight: Tensor, bias: Tensor | None, place: Tensor | None
) -> Tensor:
    """X [m, n, …, i] by weights [m, o, i] and biases [m, o]; `place` is that of their gradient."""
    flat = rows.cast(x).reshape(len(x), -1, x.shape[-1])
    y: Tensor = Affine.apply(flat, weight, bias, place)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], weight.shape[1])


class Affine(torch.autograd.Function):
    """x [m, n, i] times the transposed weights [m, o, i], plus biases [m, o], in x's dtype.

    The weights' gradient is written into `place`, if there is one.

    Autograd itself would lay the weights' gradient out the other way round and round it first;
    turning the gradients of a wide layer takes longer than computing them.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, place: Tensor | None
    ) -> Tensor:
        """The outputs."""
        low = cast(weight, x.dtype)
        ctx.save_for_backward(x, low)
        ctx.dtype, ctx.place = weight.dtype, place
        y = torch.bmm(x, low.transpose(1, 2))
        return y if bias is None else y.add_(bias[:, None].to(x.dtype))

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """The gradients of x and, as they are kept, of weights and biases."""
        x, low = ctx.saved_tensors
        dx = torch.bmm(grad, low) if ctx.needs_input_grad[0] else None
        dw = product_into(ctx.place, grad, x, ctx.dtype) if ctx.needs_input_grad[1] else None
        db = grad.sum(1, dtype=ctx.dtype) if ctx.needs_input_grad[2] else None
        return dx, dw, db, None


def product_into(place: Tensor | None, grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights' gradient [m, o, i] of grad [m, n, o] and x [m, n, i], written into a place."""
    across = grad.transpose(1, 2)
    if dispatch.multiplies_into(grad.dtype, dtype, device_of(grad)):
        if place is None:
            return torch.bmm(across, x, out_dtype=dtype)
        return torch.bmm(across, x, out_dtype=dtype, out=place)
    if place is not None and grad.dtype == dtype:
        return torch.bmm(across, x, out=place)
    return torch.bmm(across, x).to(dtype)


def cast(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights as they multiply."""
    if not dispatch.casts_by_triton(weight, dtype, device_of(weight)):
        return weight.to(dtype)
    from partavg.kernels.cast import cast

    return cast(weight, dtype)
