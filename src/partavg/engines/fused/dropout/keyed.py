"""Dropout of all workers with Triton: masks are drawn twice instead of kept."""

from math import prod
from typing import Any

import torch
import triton
from torch import Tensor

from partavg.engines.fused.channels import channels_first
from partavg.engines.fused.dropout import keyed_kernels as kernels
from partavg.kernels.launch import launch

_BLOCK = 1024
_TILE = 2048  # numbers of a program, of pixels x channels


class Keyed(torch.autograd.Function):
    """Drops a share p of x [m, …] by keys [m], which lies in one piece; channels may be last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, p: float) -> Tensor:
        """What stays, scaled; it lies as x does."""
        ctx.save_for_backward(keys)
        ctx.p, ctx.dropped = p, _dropped if x.is_contiguous() else _dropped_pixels
        y: Tensor = ctx.dropped(x, keys, p)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of what stayed, scaled likewise; it, too, lies as x does."""
        (keys,) = ctx.saved_tensors
        return ctx.dropped(grad, keys, ctx.p), None, None


def _dropped(x: Tensor, keys: Tensor, p: float) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    count = x[0].numel()
    launch(
        kernels.drop,
        (triton.cdiv(count, _BLOCK), len(x)),
        (x, keys, y),
        {"count": count, "least": _least(p)},
        scale=_scale(p, x),
        BLOCK=_BLOCK,
    )
    return y


def _dropped_pixels(x: Tensor, keys: Tensor, p: float) -> Tensor:
    turns = x.is_contiguous()  # as the gradient of what is flattened does
    seen = x.movedim(2, -1)
    y = x.new_empty(seen.shape)
    workers, count, *sides, channels = seen.shape
    pixels = prod(sides)
    block = min(128, int(triton.next_power_of_2(channels)))
    high = min(_TILE // block, int(triton.next_power_of_2(pixels)))
    launch(
        kernels.drop_pixels,
        (workers * count * triton.cdiv(pixels, high), triton.cdiv(channels, block)),
        (x if turns else seen.contiguous(), keys, y),
        {"count": count, "pixels": pixels, "least": _least(p)},
        scale=_scale(p, x),
        C=channels,
        TURNS=turns,
        BP=high,
        BC=block,
    )
    return channels_first(y)


def _least(p: float) -> int:
    """Of the 24 bits that are drawn for what stays."""
    return round(p * 2**24)


def _scale(p: float, x: Tensor) -> float:
    """What stays is multiplied by this, rounded as x is."""
    return torch.tensor(1 / (1 - p) if p < 1 else 0.0, dtype=x.dtype).item()
