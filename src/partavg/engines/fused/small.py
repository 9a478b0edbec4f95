"""Convolutions with few channels, and BatchNorm right before them, as one step of a pass."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from partavg.engines.fused import conv_cuda, tiles
from partavg.engines.fused.conv_cuda import After, Gate
from partavg.engines.fused.conv_triton import images
from partavg.engines.fused.norm_triton import Measured, Running, gradient, last, measure, normalize
from partavg.engines.fused.tiles import Tiling
from partavg.kernels.aside import aside, join

Found = tuple[Tensor, Tensor | None, Tensor, int]
"""Outputs; inputs, if others use them; the outputs' statistics in pieces; pixels of a piece."""


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
    alone: bool
    """Whether nothing else needs what comes out."""


def conv(x: Tensor | Normed, weight: Tensor, own: Tiling) -> tuple[Tensor, Tensor | None, Measured]:
    """Convolve; also return what was convolved, for its other users, and measure the outputs."""
    if not isinstance(x, Normed):
        y, inputs, *measured = Conv.apply(x, weight, own)  # type: ignore[no-untyped-call]
        return y, inputs, Measured(*measured)
    left: list[After] | None = [] if tiles.both(own) else None
    y, inputs, *measured = NormConv.apply(*x, weight, own, left)  # type: ignore[no-untyped-call]
    return y, inputs, Measured(*measured)._replace(left=left)


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
    convolution's input gradient is written. Where x comes from a convolution that can do so, the
    norm's gradient is left to it, with `through` in its place.
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
        alone: bool,
        weight: Tensor,
        own: Tiling,
        left: list[After] | None,
    ) -> Found:
        ctx.set_materialize_grads(False)
        ctx.left, ctx.leave = left, None if measured is None else measured.left
        x = last(x)
        other = None if residual is None else last(residual)
        with aside(weight):
            ahead, back = conv_cuda.pack(weight, own)
        measured = measured or measure(x)
        z = None if alone and other is None and left is not None else torch.empty_like(x)
        mean, rstd = normalize(
            x, measured, norm_weight, norm_bias, other, running, eps, momentum, relu, z
        )
        join(x.device)
        if z is None:
            gate = Gate(x, None, mean, rstd, norm_weight, norm_bias, added=False, relu=relu)
            y, pieces, pixels = conv_cuda.convolve(x, ahead, own, gate)
        else:
            y, pieces, pixels = conv_cuda.convolve(z, ahead, own)
        ctx.own, ctx.affine = own, (norm_weight, norm_bias)
        ctx.measured, ctx.eps = measured, eps
        ctx.added, ctx.relu = residual is not None, relu
        ctx.save_for_backward(x, z, mean, rstd, back)
        ctx.mark_non_differentiable(pieces)
        return y.movedim(-1, 2), None if z is None else z.movedim(-1, 2), pieces, pixels

    @staticmethod
    def backward(ctx: Any, grad: Tensor, added: Tensor | None, *none: Any) -> Any:
        x, z, mean, rstd, back = ctx.saved_tensors
        grad, other = last(grad), None if added is None else last(added)
        weight, bias = ctx.affine
        gate = Gate(x, z, mean, rstd, weight, bias, ctx.added, ctx.relu)
        affine: list[Tensor | None]
        if ctx.left:
            through, sums, parts = conv_cuda.both_gradients(
                grad, ctx.left.pop(), back, ctx.own, other, gate
            )
            with aside(parts):
                dweight = parts[0] if len(parts) == 1 else parts.sum(0)
        else:
            if z is None:
                z = torch.empty_like(x)
                normalize(x, ctx.measured, weight, bias, None, None, ctx.eps, 0.0, ctx.relu, z)
                gate = gate._replace(z=z)
            with aside(grad, z):
                dweight = conv_cuda.weight_gradient(z, grad, ctx.own)
            through, sums = conv_cuda.input_gradient(grad, back, ctx.own, other, gate)[:2]
        if ctx.leave is not None:
            ctx.leave.append(After(x, sums, mean, rstd, weight))
            with aside(sums):
                total, along = sums.sum(1).unbind(1)
            dx, affine = through, [along, total]
        else:
            dx, _, *affine = gradient(
                x, None, through, mean, rstd, weight, bias, sums, added=False, relu=False
            )
        grown = through.movedim(-1, 2) if ctx.added else None
        return dx.movedim(-1, 2), *affine, grown, *[None] * 6, dweight, None, None
