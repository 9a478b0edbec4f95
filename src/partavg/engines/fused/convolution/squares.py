"""Convolutions of wide networks in squares of 8 x 8 pixels, as a step of a pass."""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from partavg.engines.fused.channels import channels_first, channels_last
from partavg.engines.fused.convolution import squares_cuda as kernels
from partavg.engines.fused.convolution.squares_cuda import Squares


class InSquares(Function):
    """conv2d plus something; also returns its input, so that others' gradients are added up."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, own: Squares, added: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        x = channels_last(x)
        ahead, back = kernels.pack(weight, own)
        ctx.own = own
        ctx.save_for_backward(x, back)
        other = None if added is None else channels_last(added)
        return channels_first(kernels.convolve(x, ahead, own, other)), channels_first(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, added: Tensor | None) -> Any:
        if grad is None:
            return added, None, None, None
        x, back = ctx.saved_tensors
        grad = channels_last(grad)
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            other = None if added is None else channels_last(added)
            dx = channels_first(kernels.input_gradient(grad, back, ctx.own, other))
        if ctx.needs_input_grad[1]:
            dweight = kernels.weight_gradient(x, grad, ctx.own)
        return dx, dweight, None, channels_first(grad) if ctx.needs_input_grad[3] else None
