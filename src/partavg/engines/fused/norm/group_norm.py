"""GroupNorm of all workers with Triton, on activations that lie as [m, n, …, c]."""

from math import prod
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from partavg.engines.fused.channels import channels_first, channels_last
from partavg.engines.fused.norm import group_norm_kernels as kernels
from partavg.kernels.launch import launch
from partavg.kernels.streams import on_side_stream

_SAMPLE = 16384  # elements of a sample that a program goes over, where that is enough columns
_COLUMNS = 64  # of a program, at least: rows in memory that are worth reading
_TILE = 2048  # elements that a program holds at a time
_REGISTERS = 64  # of a thread, at most: then two programs of 16 warps are on a processor


class GroupSettings(NamedTuple):
    """What a GroupNorm layer does, and what follows it."""

    groups: int
    eps: float
    relu: bool


class GroupNorm(torch.autograd.Function):
    """Normalizes groups of each sample's channels, adds, applies ReLU."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        settings: GroupSettings,
        into: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        x = channels_last(x)
        y = torch.empty_like(x)
        mean, rstd = torch.empty(
            (2, *x.shape[:2], settings.groups), dtype=torch.float32, device=x.device
        ).unbind()
        added = None if residual is None else channels_last(residual)
        cut = _Cut(x, settings.groups)
        launch(
            kernels.group_norm,
            cut.grid,
            (x, weight, bias, added, y, mean, rstd),
            _sizes(cut, weight, bias),
            eps=settings.eps,
            **_constants(weight, bias, residual, settings),
            **cut.constants,
        )
        keeps_y = settings.relu and residual is not None
        ctx.save_for_backward(x, y if keeps_y else None, mean, rstd, weight, bias)
        ctx.added, ctx.settings, ctx.into = residual is not None, settings, into
        return channels_first(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y, mean, rstd, weight, bias = ctx.saved_tensors
        settings = ctx.settings
        grad, dx = channels_last(grad), torch.empty_like(x)
        dresidual = torch.empty_like(x) if ctx.added else None
        sums = torch.empty((*x.shape[:2], 2, x.shape[-1]), dtype=torch.float32, device=x.device)
        cut = _Cut(x, settings.groups, back=True)
        launch(
            kernels.group_norm_backward,
            cut.grid,
            (x, y, grad, mean, rstd, weight, bias, dx, dresidual, sums),
            _sizes(cut, weight, bias),
            **_constants(weight, bias, dresidual, settings),
            **cut.constants,
        )
        with on_side_stream(sums):
            both = _sums_of_samples(sums, ctx.into)
        affine = (
            None if own is None else found for own, found in zip((weight, bias), both, strict=True)
        )
        grown = None if dresidual is None else channels_first(dresidual)
        return channels_first(dx), *affine, grown, None, None


def _sums_of_samples(sums: Tensor, into: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """What samples give a layer's weight and bias [m, c]; maybe written `into` a place."""
    workers, samples, _, channels = sums.shape
    of_weight, of_bias = into or sums.new_empty(2, workers, channels)
    columns = min(_COLUMNS, _power_of_two(channels))
    launch(
        kernels.sums_of_samples,
        (triton.cdiv(channels, columns), workers),
        (sums, of_weight, of_bias),
        {
            "samples": samples,
            "weight_stride": of_weight.stride(0),
            "bias_stride": of_bias.stride(0),
        },
        C=channels,
        BC=columns,
        BS=32,
    )
    return of_weight, of_bias


class _Cut:
    """How the groups and pixels of one sample are divided among programs, and then into blocks."""

    def __init__(self, x: Tensor, groups: int, *, back: bool = False) -> None:
        count, *sizes, channels = x.shape[1:]
        self.pixels = prod(sizes)
        each = channels // groups
        wide, high, most = (_power_of_two(size) for size in (each, self.pixels, groups))
        together = min(most, max(1, _SAMPLE // (wide * high), _COLUMNS // wide))
        columns = wide * together
        large = back and high * columns > 4 * _TILE  # then fewer blocks are faster
        high = min(high, max(1, (2 * _TILE if large else _TILE) // columns))
        self.grid = count, triton.cdiv(groups, together), len(x)
        self.constants = {
            "C": channels,
            "D": each,
            "BG": together,
            "BD": wide,
            "BP": high,
            "BLOCKS": triton.cdiv(self.pixels, high),
            "num_warps": min(16, max(1, columns * high // 256)),
            **({} if torch.version.hip else {"maxnreg": _REGISTERS}),  # AMD has no such option
        }


def _power_of_two(size: int) -> int:
    """The smallest that is not smaller."""
    return int(triton.next_power_of_2(max(1, size)))


def _sizes(cut: _Cut, weight: Tensor | None, bias: Tensor | None) -> dict[str, int]:
    return {
        "pixels": cut.pixels,
        "weight_stride": 0 if weight is None else weight.stride(0),
        "bias_stride": 0 if bias is None else bias.stride(0),
    }


def _constants(
    weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, settings: GroupSettings
) -> dict[str, bool]:
    return {
        "WEIGHT": weight is not None,
        "BIAS": bias is not None,
        "RESIDUAL": residual is not None,
        "RELU": settings.relu,
    }
