"""Both norms in plain torch: what runs without kernels, and what they are compared with."""

import torch
from torch import Tensor
from torch.nn import functional as F

from partavg.engines.fused.norm.parameters import NormParameters


def batch_norm(
    x: Tensor,
    own: NormParameters,
    eps: float,
    momentum: float | Tensor | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """Normalize x [m, n, c, …] by each worker's batch; update the running statistics."""
    axes = (1, *range(3, x.ndim))
    wide = x.to(own.weight.dtype) if own.weight is not None else x
    var, mean = torch.var_mean(wide, axes, correction=0)  # [m, c]
    if own.running is not None and momentum is not None:
        count = x[0, :, 0].numel()
        running_mean, running_var = own.running
        with torch.no_grad():
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(var * (count / (count - 1)), momentum)
    return normalize(x, own.weight, own.bias, mean, var, eps, residual, relu)


def normalize(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """Normalize x [m, n, c, …] by given statistics [m, c]; add; ReLU."""
    scale = (var + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale
    if bias is not None:
        shift = shift + bias
    y = torch.addcmul(_along(shift, x), x, _along(scale, x))
    return _finished(y, residual, relu, x.dtype)


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """Normalize x [m, n, c, …] by groups of each sample's channels; add; ReLU."""
    wide = x.to(weight.dtype) if weight is not None else x
    beside = wide.transpose(0, 1).flatten(1, 2)  # [n, m · c, …]
    scale, shift = (None if own is None else own.flatten() for own in (weight, bias))
    y = F.group_norm(beside, len(x) * groups, scale, shift, eps)
    y = y.view(x.shape[1], len(x), *x.shape[2:]).transpose(0, 1)
    return _finished(y, residual, relu, x.dtype)


def _finished(y: Tensor, residual: Tensor | None, relu: bool, dtype: torch.dtype) -> Tensor:
    """What follows a norm, in the type of activations."""
    if residual is not None:
        y = y + residual
    y = y.relu() if relu else y
    return y.to(dtype)


def _along(values: Tensor, x: Tensor) -> Tensor:
    """Values [m, c] beside x [m, n, c, …]."""
    return values.view(len(values), 1, -1, *[1] * (x.ndim - 3))
