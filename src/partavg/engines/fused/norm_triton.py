"""BatchNorm of all workers with Triton, on activations that lie as [m, n, …, c]."""

from typing import Any

import torch
import triton
from torch import Tensor

from partavg.engines.fused import norm_kernels
from partavg.engines.fused.launch import launch

_TILE = 4096  # elements that a program holds at a time
_SPLITS = 32  # programs for one worker: a power of 2


def last(x: Tensor) -> Tensor:
    """[m, n, c, …] with the channels last in memory; no copy where they lie so already."""
    return x.movedim(2, -1).contiguous()


class Norm(torch.autograd.Function):
    """Normalizes by the batch's own statistics, adds, applies ReLU; updates running statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        running: tuple[Tensor, Tensor] | None,
        eps: float,
        momentum: float,
        relu: bool,
    ) -> Tensor:
        x = last(x)
        residual = None if residual is None else last(residual)
        shape = _Shape(x)
        partial = shape.partial(x)
        launch(
            norm_kernels.norm_statistics, shape.grid, (x, partial), shape.sizes, **shape.constants
        )
        y = torch.empty_like(x)
        mean, rstd = torch.empty(
            (2, len(x), shape.channels), dtype=torch.float32, device=x.device
        ).unbind()
        launch(
            norm_kernels.norm_apply,
            shape.grid,
            (
                x,
                partial,
                x if weight is None else weight,
                x if bias is None else bias,
                x if residual is None else residual,
                mean,
                rstd,
                *(running or (mean, mean)),
                y,
            ),
            {
                **shape.sizes,
                "tiles": shape.tiles,
                "stride": 0 if weight is None else weight.stride(0),
                "running_stride": 0 if running is None else running[0].stride(0),
            },
            eps=eps,
            momentum=momentum,
            TILES=_SPLITS,
            AFFINE=weight is not None,
            RUNNING=running is not None,
            RESIDUAL=residual is not None,
            RELU=relu,
            **shape.constants,
        )
        ctx.save_for_backward(x, y if relu and residual is not None else None, mean, rstd)
        ctx.affine = weight, bias
        ctx.added, ctx.relu = residual is not None, relu
        return y.movedim(-1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y, mean, rstd = ctx.saved_tensors
        weight, bias = ctx.affine
        grad = last(grad)
        shape = _Shape(x)
        partial = shape.partial(x)
        given = (
            x,
            x if y is None else y,
            grad,
            mean,
            rstd,
            weight if weight is not None else x,
            bias if bias is not None else x,
            partial,
        )
        sizes = {**shape.sizes, "stride": 0 if weight is None else weight.stride(0)}
        constants = {
            "AFFINE": weight is not None,
            "RESIDUAL": ctx.added,
            "RELU": ctx.relu,
            **shape.constants,
        }
        launch(norm_kernels.norm_reduce, shape.grid, given, sizes, **constants)
        dx = torch.empty_like(x)
        added = torch.empty_like(x) if ctx.added else None
        dweight, dbias = torch.empty((2, *mean.shape), dtype=mean.dtype, device=x.device).unbind()
        launch(
            norm_kernels.norm_backward,
            shape.grid,
            (*given, dx, dx if added is None else added, dweight, dbias),
            {**sizes, "tiles": shape.tiles},
            TILES=_SPLITS,
            **constants,
        )
        own = (dweight, dbias) if weight is not None else (None, None)
        grown = None if added is None else added.movedim(-1, 2)
        return dx.movedim(-1, 2), *own, grown, None, None, None, None


class _Shape:
    """How the pixels and channels of one worker are divided among programs."""

    def __init__(self, x: Tensor) -> None:
        self.channels = x.shape[-1]
        self.pixels = x[0].numel() // self.channels
        self.bc = min(128, int(triton.next_power_of_2(self.channels)))
        self.bp = max(1, _TILE // self.bc)
        # Every program that normalizes adds up what all have measured: few, so that it is cheap.
        self.per = max(self.bp, self.bp * triton.cdiv(self.pixels, self.bp * _SPLITS))
        self.tiles = triton.cdiv(self.pixels, self.per)
        self.grid = self.tiles, triton.cdiv(self.channels, self.bc), len(x)
        self.sizes = {"pixels": self.pixels, "PER": self.per}
        self.constants = {"C": self.channels, "BP": self.bp, "BC": self.bc}

    def partial(self, x: Tensor) -> Tensor:
        """Room for two numbers per tile and channel."""
        return torch.empty(
            (len(x), self.tiles, 2, self.channels), dtype=torch.float32, device=x.device
        )
