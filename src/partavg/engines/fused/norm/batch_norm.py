"""BatchNorm of all workers with Triton, on activations that lie as [m, n, …, c]."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from partavg.engines.fused.channels import channels_first, channels_last
from partavg.engines.fused.norm import batch_norm_kernels as kernels
from partavg.kernels.launch import launch

_TILE = 4096  # elements that a program holds at a time
SPLITS = 32
"""Sums over some of a worker's pixels that are added up in the end, at most: a power of 2."""


class NormSettings(NamedTuple):
    """What a BatchNorm layer does besides normalizing, and what follows it."""

    running: tuple[Tensor, Tensor] | None
    """Statistics [m, c] to update: means and variances."""
    eps: float
    momentum: float
    relu: bool
    fixed: bool = False
    """Whether the statistics are given, and not those of the batch: no gradient goes there."""


class Statistics(NamedTuple):
    """Mean and sum of squared deviations [m, partials, 2, c] of some pixels after others."""

    partials: Tensor
    pixels: int
    """Of each; the last may have fewer."""
    deferred: list[Any] | None = None
    """Where the way back may leave its BatchNorm for the convolution before it."""

    @classmethod
    def fixed(
        cls, running: tuple[Tensor, Tensor], pixels: int, deferred: list[Any] | None = None
    ) -> "Statistics":
        """Those given [m, c] in place of a batch's own, as if they were of all its pixels."""
        mean, var = running
        return cls(torch.stack((mean, var * pixels), 1)[:, None], pixels, deferred)


class Normalized(NamedTuple):
    """A BatchNorm as the way back needs to know it, on x [m, n, …, c]."""

    x: Tensor
    y: Tensor | None
    """The outputs, where x alone does not tell what the ReLU let through."""
    mean: Tensor
    rstd: Tensor
    weight: Tensor | None
    bias: Tensor | None
    added: bool
    """Whether something was added before the ReLU."""
    relu: bool

    def arguments(self, grad: Tensor) -> tuple[Tensor, ...]:
        """The first ones of both backward kernels; x stands for what there is not."""
        x, y, mean, rstd, *affine = self[:6]
        absent = (x if tensor is None else tensor for tensor in affine)
        return x, x if y is None else y, grad, mean, rstd, *absent

    def constants(self) -> dict[str, bool]:
        """Of both backward kernels."""
        return {"AFFINE": self.weight is not None, "RESIDUAL": self.added, "RELU": self.relu}


class BatchNorm(torch.autograd.Function):
    """Normalizes by the batch's own statistics, adds, applies ReLU; updates running statistics.

    Also returns its input, for others to use: their gradients are added on the way.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        settings: NormSettings,
        statistics: Statistics | None,
        into: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        x = channels_last(x)
        residual = None if residual is None else channels_last(residual)
        y = torch.empty_like(x)
        mean, rstd = normalize(x, statistics or measure(x), weight, bias, residual, settings, y)
        keeps_y = settings.relu and residual is not None
        ctx.save_for_backward(x, y if keeps_y else None, mean, rstd)
        ctx.affine, ctx.into = (weight, bias), into
        ctx.added, ctx.relu, ctx.fixed = residual is not None, settings.relu, settings.fixed
        return channels_first(y), channels_first(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, beside: Tensor | None) -> Any:
        if grad is None:
            return beside, *[None] * 6
        (x, y, mean, rstd), (weight, bias) = ctx.saved_tensors, ctx.affine
        norm = Normalized(x, y, mean, rstd, weight, bias, ctx.added, ctx.relu)
        grad = channels_last(grad)
        shape = _Shape(norm.x)
        sums = shape.partials(norm.x)
        launch(
            kernels.norm_reduce,
            shape.grid,
            (*norm.arguments(grad), sums),
            {**shape.sizes, "stride": _stride(norm.weight)},
            **norm.constants(),
            **shape.constants,
        )
        other = None if beside is None else channels_last(beside)
        felt_sums = felt(sums) if ctx.fixed else sums
        dx, added, *own = gradient(norm, grad, felt_sums, other, ctx.into)
        if ctx.fixed and weight is not None:
            total, along = sums.sum(1).unbind(1)
            own = [along, total]
        grown = None if added is None else channels_first(added)
        return channels_first(dx), *own, grown, None, None, None


def measure(x: Tensor) -> Statistics:
    """The statistics of x [m, n, …, c]."""
    shape = _Shape(x)
    partials = shape.partials(x)
    constants = shape.constants | {"BP": max(1, shape.bp // 2)}  # of its sums a program holds two
    launch(kernels.norm_statistics, shape.grid, (x, partials), shape.sizes, **constants)
    return Statistics(partials, shape.per)


def normalize(
    x: Tensor,
    statistics: Statistics,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    settings: NormSettings,
    y: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The mean and 1 / deviation [m, c] of x; updates running statistics.

    Writes relu(norm(x) + residual) to y, where there is one.
    """
    shape, running = _Shape(x), settings.running
    mean, rstd = torch.empty(
        (2, len(x), shape.channels), dtype=torch.float32, device=x.device
    ).unbind()
    launch(
        kernels.norm_apply,
        (1, *shape.grid[1:]) if y is None else shape.grid,
        (
            x,
            statistics.partials,
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
            "tiles": statistics.partials.shape[1],
            "OF": statistics.pixels,
            "stride": _stride(weight),
            "running_stride": 0 if running is None else running[0].stride(0),
        },
        eps=settings.eps,
        momentum=settings.momentum,
        TILES=SPLITS,
        AFFINE=weight is not None,
        RUNNING=running is not None,
        RESIDUAL=residual is not None,
        RELU=settings.relu,
        **shape.constants,
    )
    return mean, rstd


def felt(sums: Tensor) -> Tensor:
    """What fixed statistics feel of a gradient, where others have sums of it: nothing."""
    return sums.new_zeros(len(sums), 1, *sums.shape[2:])


def gradient(
    norm: Normalized,
    grad: Tensor,
    sums: Tensor,
    beside: Tensor | None = None,
    into: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of x, of what was added, of weight and bias.

    `sums` [m, partials, 2, c] are of the gradient, and of it times the normalized x. With neither
    an addition nor a ReLU, `grad` is that of the normalized x itself. `beside`, the gradient by
    others that use x, is added to its own. Those of weight and bias are written `into` a place.
    """
    x, mean, shape = norm.x, norm.mean, _Shape(norm.x)
    dx = torch.empty_like(x)
    dresidual = torch.empty_like(x) if norm.added else None
    dweight, dbias = into or torch.empty((2, *mean.shape), dtype=mean.dtype, device=x.device)
    launch(
        kernels.norm_backward,
        shape.grid,
        (
            *norm.arguments(grad),
            sums,
            dx if beside is None else beside,
            dx,
            dx if dresidual is None else dresidual,
            dweight,
            dbias,
        ),
        {
            **shape.sizes,
            "stride": _stride(norm.weight),
            "apart": dweight.stride(0),
            "tiles": sums.shape[1],
        },
        TILES=SPLITS,
        BESIDE=beside is not None,
        **norm.constants(),
        **shape.constants,
    )
    affine = (None, None) if norm.weight is None else (dweight, dbias)
    return dx, dresidual, *affine


def _stride(weight: Tensor | None) -> int:
    """From one worker's weights to the next's."""
    return 0 if weight is None else weight.stride(0)


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

    def partials(self, x: Tensor) -> Tensor:
        """Room for two numbers per tile and channel."""
        return torch.empty(
            (len(x), self.tiles, 2, self.channels), dtype=torch.float32, device=x.device
        )
