"""Convolutions of one worker after another by torch's own kernels: those that fill a GPU alone."""

from typing import Any

import torch
from torch import Tensor

from partavg.engines.fused.channels import channels_first, channels_last
from partavg.engines.fused.convolution.case import Pair


class OneWorkerAtATime(torch.autograd.Function):
    """conv2d; also returns its input, for others to use: their gradients are added on the way."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: Pair
    ) -> tuple[Tensor, Tensor]:
        x = channels_last(x)
        ctx.set_materialize_grads(False)
        ctx.stride, ctx.padding, ctx.bias = stride, padding, bias is not None
        low = weight.detach().to(x.dtype, memory_format=torch.preserve_format)
        ctx.save_for_backward(x, low)
        y: Tensor | None = None
        for row, (own, kernel) in enumerate(zip(channels_first(x), low, strict=True)):
            shift = None if bias is None else bias[row].to(x.dtype)
            kernel = kernel.contiguous(memory_format=torch.channels_last)
            found = torch.conv2d(own, kernel, shift, stride, padding)
            if y is None:
                y = x.new_empty(len(x), len(found), *found.shape[2:], found.shape[1])
            y[row] = found.permute(0, 2, 3, 1)
        assert y is not None
        return channels_first(y), channels_first(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, added: Tensor | None) -> Any:
        if grad is None:
            return added, None, None, None, None
        grad = channels_last(grad)
        x, weight = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], True, False]
        dx = torch.empty_like(x) if wanted[0] else None
        dweight = torch.empty(weight.shape, dtype=torch.float32, device=x.device)
        for row in range(len(x)):
            kernel = weight[row].contiguous(memory_format=torch.channels_last)
            into, own, _ = torch.ops.aten.convolution_backward(
                grad[row].permute(0, 3, 1, 2),
                x[row].permute(0, 3, 1, 2),
                kernel,
                None,
                [ctx.stride] * 2,
                list(ctx.padding),
                [1, 1],
                False,
                [0, 0],
                1,
                wanted,
            )
            dweight[row] = own
            if dx is not None:
                dx[row] = into.permute(0, 2, 3, 1)
        dbias = grad.sum((1, 2, 3), dtype=torch.float32) if ctx.bias else None
        if dx is None:
            return None, dweight, dbias, None, None
        moved = channels_first(dx)
        return moved if added is None else moved.add_(added), dweight, dbias, None, None
