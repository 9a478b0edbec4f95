"""Convolutions with few channels, and BatchNorm right before them, as one step of a pass."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from partavg.engines.fused import conv_cuda
from partavg.engines.fused.conv_cuda import Gate, Tiling
from partavg.engines.fused.conv_triton import images
from partavg.engines.fused.norm_triton import Measured, Running, gradient, last, measure, normalize
from partavg.kernels.aside import aside, join

Found = tuple[Tensor, Tensor, Tensor, int]
"""Outputs; inputs, for others to use; the outputs' statistics in pieces; pixels of a piece."""


class Normed(NamedTuple):
    """What a BatchNorm layer, an addition and a ReLU are to make of x before it is convolved."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    residual: Tensor | None
    running: Running | None
    eps: float
    momentum: float
    relu: bool
    measured: Measured | None


def conv(x: Tensor | Normed, weight: Tensor, own: Tiling) -> tuple[Tensor, Tensor, Measured]:
    """Convolve; also return what was convolved, for its other users, and measure the outputs."""
    if isinstance(x, Normed):
        y, inputs, *measured = NormConv.apply(*x, weight, own)  # type: ignore[no-untyped-call]
    else:
        y, inputs, *measured = Conv.apply(x, weight, own)  # type: ignore[no-untyped-call]
    return y, inputs, Measured(*measured)


class Conv(torch.autograd.Function):
    """conv2d on [m, n, c, h, w]; gradients of others that use its input are added on the way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, own: Tiling) -> Found:
        ctx.set_materialize_grads(False)
        rows = images(x) if own.GIVEN < own.C else last(x)
        ahead, back = conv_cuda.pack(weight, own)
        y, pieces, pixels = conv_cuda.convolve(rows, ahead, own)
        ctx.own = own
        ctx.save_for_backward(rows, back)
        ctx.mark_non_differentiable(pieces)
        return y.movedim(-1, 2), x if own.GIVEN < own.C else rows.movedim(-1, 2), pieces, pixels

    @staticmethod
    def backward(ctx: Any, grad: Tensor, added: Tensor | None, *none: Any) -> Any:
        x, back = ctx.saved_tensors
        grad = last(grad)
        with aside(grad, x):
            dweight = conv_cuda.weight_gradient(x, grad, ctx.own)
        dx = None
        if ctx.needs_input_grad[0]:
            other = None if added is None else last(added)
            dx = conv_cuda.input_gradient(grad, back, ctx.own, other, None)[0].movedim(-1, 2)
        return dx, dweight, None


class NormConv(torch.autograd.Function):
    """conv2d of relu(norm(x) + residual); the latter is returned as well, as by `Conv`.

    The gradient goes back through the ReLU, and what the norm needs of it is added up, where the
    convolution's input gradient is written.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        residual: Tensor | None,
        running: Running | None,
        eps: float,
        momentum: float,
        relu: bool,
        measured: Measured | None,
        weight: Tensor,
        own: Tiling,
    ) -> Found:
        ctx.set_materialize_grads(False)
        x = last(x)
        other = None if residual is None else last(residual)
        with aside(weight):
            ahead, back = conv_cuda.pack(weight, own)
        z, mean, rstd = normalize(
            x, measured or measure(x), norm_weight, norm_bias, other, running, eps, momentum, relu
        )
        join(z.device)
        y, pieces, pixels = conv_cuda.convolve(z, ahead, own)
        ctx.own, ctx.affine = own, (norm_weight, norm_bias)
        ctx.added, ctx.relu = residual is not None, relu
        ctx.save_for_backward(x, z, mean, rstd, back)
        ctx.mark_non_differentiable(pieces)
        return y.movedim(-1, 2), z.movedim(-1, 2), pieces, pixels

    @staticmethod
    def backward(ctx: Any, grad: Tensor, added: Tensor | None, *none: Any) -> Any:
        x, z, mean, rstd, back = ctx.saved_tensors
        grad = last(grad)
        with aside(grad, z):
            dweight = conv_cuda.weight_gradient(z, grad, ctx.own)
        other = None if added is None else last(added)
        weight, bias = ctx.affine
        gate = Gate(x, z, mean, rstd, weight, bias, ctx.added, ctx.relu)
        through, sums = conv_cuda.input_gradient(grad, back, ctx.own, other, gate)[:2]
        dx, _, *own = gradient(
            x, None, through, mean, rstd, weight, bias, sums, added=False, relu=False
        )
        grown = through.movedim(-1, 2) if ctx.added else None
        return dx.movedim(-1, 2), *own, grown, *[None] * 5, dweight, None
