"""BatchNorm of all workers with Triton, on activations that lie as [m, n, …, c]."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from partavg.engines.fused import norm_kernels
from partavg.kernels.launch import launch

_TILE = 4096  # elements that a program holds at a time
SPLITS = 32
"""Pieces of a worker's pixels that are added up in the end, at most: a power of 2."""

Running = tuple[Tensor, Tensor]


class Measured(NamedTuple):
    """Mean and sum of squared deviations [m, pieces, 2, c] of pieces of the pixels."""

    pieces: Tensor
    pixels: int
    """Of one piece; the last may have fewer."""
    left: list[Any] | None = None
    """Where the way back may leave its BatchNorm for the convolution before it."""


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
        running: Running | None,
        eps: float,
        momentum: float,
        relu: bool,
        measured: Measured | None,
    ) -> Tensor:
        x = last(x)
        residual = None if residual is None else last(residual)
        y = torch.empty_like(x)
        mean, rstd = normalize(
            x, measured or measure(x), weight, bias, residual, running, eps, momentum, relu, y
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
        launch(
            norm_kernels.norm_reduce,
            shape.grid,
            (*_given(x, y, grad, mean, rstd, weight, bias), partial),
            {**shape.sizes, "stride": 0 if weight is None else weight.stride(0)},
            AFFINE=weight is not None,
            RESIDUAL=ctx.added,
            RELU=ctx.relu,
            **shape.constants,
        )
        dx, added, *own = gradient(
            x, y, grad, mean, rstd, weight, bias, partial, added=ctx.added, relu=ctx.relu
        )
        grown = None if added is None else added.movedim(-1, 2)
        return dx.movedim(-1, 2), *own, grown, None, None, None, None, None


def measure(x: Tensor) -> Measured:
    """The statistics of x [m, n, …, c] in pieces."""
    shape = _Shape(x)
    pieces = shape.partial(x)
    launch(norm_kernels.norm_statistics, shape.grid, (x, pieces), shape.sizes, **shape.constants)
    return Measured(pieces, shape.per)


def normalize(
    x: Tensor,
    measured: Measured,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    running: Running | None,
    eps: float,
    momentum: float,
    relu: bool,
    y: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The mean and 1 / deviation [m, c] of x; updates running statistics.

    Writes relu(norm(x) + residual) to y, where there is one.
    """
    shape = _Shape(x)
    mean, rstd = torch.empty(
        (2, len(x), shape.channels), dtype=torch.float32, device=x.device
    ).unbind()
    launch(
        norm_kernels.norm_apply,
        (1, *shape.grid[1:]) if y is None else shape.grid,
        (
            x,
            measured.pieces,
            x if weight is None else weight,
            x if bias is None else bias,
            x if residual is None else residual,
            mean,
            rstd,
            *(running or (mean, mean)),
            x if y is None else y,
        ),
        {
            **shape.sizes,
            "PER": 0 if y is None else shape.per,
            "tiles": measured.pieces.shape[1],
            "OF": measured.pixels,
            "stride": 0 if weight is None else weight.stride(0),
            "running_stride": 0 if running is None else running[0].stride(0),
        },
        eps=eps,
        momentum=momentum,
        TILES=SPLITS,
        AFFINE=weight is not None,
        RUNNING=running is not None,
        RESIDUAL=residual is not None,
        RELU=relu,
        **shape.constants,
    )
    return mean, rstd


def gradient(
    x: Tensor,
    y: Tensor | None,
    grad: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    partial: Tensor,
    *,
    added: bool,
    relu: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of x, of what was added, of weight and bias, from sums of all pieces.

    With neither an addition nor a ReLU, `grad` is that of the normalized x itself.
    """
    shape = _Shape(x)
    dx = torch.empty_like(x)
    dresidual = torch.empty_like(x) if added else None
    dweight, dbias = torch.empty((2, *mean.shape), dtype=mean.dtype, device=x.device).unbind()
    launch(
        norm_kernels.norm_backward,
        shape.grid,
        (
            *_given(x, y, grad, mean, rstd, weight, bias),
            partial,
            dx,
            dx if dresidual is None else dresidual,
            dweight,
            dbias,
        ),
        {
            **shape.sizes,
            "stride": 0 if weight is None else weight.stride(0),
            "tiles": partial.shape[1],
        },
        TILES=SPLITS,
        AFFINE=weight is not None,
        RESIDUAL=added,
        RELU=relu,
        **shape.constants,
    )
    return (dx, dresidual, dweight, dbias) if weight is not None else (dx, dresidual, None, None)


def _given(
    x: Tensor,
    y: Tensor | None,
    grad: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, ...]:
    """Arguments of both backward kernels; x stands for what there is not."""
    absent = (x if tensor is None else tensor for tensor in (weight, bias))
    return x, x if y is None else y, grad, mean, rstd, *absent


class _Shape:
    """How the pixels and channels of one worker are divided among programs."""

    def __init__(self, x: Tensor) -> None:
        self.channels = x.shape[-1]
        self.pixels = x[0].numel() // self.channels
        self.bc = min(128, int(triton.next_power_of_2(self.channels)))
        self.bp = max(1, _TILE // self.bc)
        self.per = max(self.bp, self.bp * triton.cdiv(self.pixels, self.bp * SPLITS))
        self.tiles = triton.cdiv(self.pixels, self.per)
        self.grid = self.tiles, triton.cdiv(self.channels, self.bc), len(x)
        self.sizes = {"pixels": self.pixels, "PER": self.per}
        self.constants = {"C": self.channels, "BP": self.bp, "BC": self.bc}

    def partial(self, x: Tensor) -> Tensor:
        """Room for two numbers per tile and channel."""
        return torch.empty(
            (len(x), self.tiles, 2, self.channels), dtype=torch.float32, device=x.device
        )
