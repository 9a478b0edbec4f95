"""LayerNorm and RMSNorm for all workers at once, with the addition before them."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.engines.fused import dispatch
from partavg.engines.fused.dispatch import Norm, device_of
from partavg.engines.fused.rows import Rows
from partavg.engines.fused.token_norm import reference


def run(layer: Any, rows: Rows, name: str, x: Tensor) -> Tensor:
    """The layer's outputs for x [m, n, …, width]."""
    return add_and_run(layer, rows, name, x, None)[1]


def add_and_run(
    layer: Any, rows: Rows, name: str, x: Tensor, other: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The sum of two values, or x, and what the layer makes of it.

    Others who use the sum are to take this one: gradients are then added up on the way.
    """
    affine = rows.maybe(name, "weight"), rows.maybe(name, "bias")
    rms = isinstance(layer, nn.RMSNorm)
    if other is not None and (x.shape != other.shape or x.dtype != other.dtype):
        x, other = _added(x, other), None
    return normalize(x, other, *affine, len(layer.normalized_shape), layer.eps, rms)


def run_function(
    function: Any,
    rows: Rows,
    name: str,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """F.layer_norm or F.rms_norm; bias and eps of the latter are one place further left."""
    rms = function is F.rms_norm
    if rms and not isinstance(bias, Tensor):
        bias, eps = None, eps if bias is None else bias
    eps = 1e-5 if eps is None and not rms else eps
    return normalize(x, None, weight, bias, len(normalized_shape), eps, rms)[1]


def normalize(
    x: Tensor,
    other: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    axes: int,
    eps: float | None,
    rms: bool,
) -> tuple[Tensor, Tensor]:
    """x, or x and another one added up, and that normalized over its last axes.

    Weights and biases are [m, …] of these axes. RMSNorm's usual eps is that of what is computed in.
    """
    if eps is None:
        eps = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
    width = prod(x.shape[-axes:])
    if dispatch.token_norm(width, x.dtype, device_of(x)) == Norm.TORCH:
        x = x if other is None else x + other
        return x, reference.normalize(x, weight, bias, axes, eps, rms)
    from partavg.engines.fused.token_norm.token_norm import TokenNorm

    flat = [None if value is None else value.reshape(len(x), -1, width) for value in (x, other)]
    affine = [None if value is None else value.reshape(len(x), width) for value in (weight, bias)]
    again, y = TokenNorm.apply(*flat, *affine, eps, rms)  # type: ignore[no-untyped-call]
    return again.view(x.shape), y.view(x.shape)


def _added(x: Tensor, other: Tensor) -> Tensor:
    """A sum as torch computes it for one worker, shorter shapes spread from the right."""
    return torch.func.vmap(torch.add)(x, other)
