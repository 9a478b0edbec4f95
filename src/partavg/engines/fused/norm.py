"""BatchNorm for all workers at once, with the residual addition and the ReLU that follow it."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from partavg.kernels.backend import uses_triton

if TYPE_CHECKING:
    from partavg.engines.fused.norm_triton import Measured


def measured(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    eps: float,
    momentum: float | Tensor | None,
    residual: Tensor | None,
    relu: bool,
    known_statistics: "Measured | None" = None,
) -> Tensor:
    """Normalize x [m, n, c, …] by the statistics of each worker's batch; update the running ones.

    `momentum` is the weight of this batch in them, for all workers or [m, 1].
    """
    narrow = x.dtype != torch.float64
    if uses_triton(x) and narrow and not isinstance(momentum, Tensor):
        from partavg.engines.fused.norm_triton import Norm

        both = running_mean is not None and running_var is not None and momentum is not None
        running = (running_mean, running_var) if both else None
        y: Tensor = Norm.apply(  # type: ignore[no-untyped-call]
            x, weight, bias, residual, running, eps, momentum or 0.0, relu, known_statistics
        )
        return y
    axes = (1, *range(3, x.ndim))
    wide = x.to(weight.dtype) if weight is not None else x
    var, mean = torch.var_mean(wide, axes, correction=0)  # [m, c]
    if running_mean is not None and running_var is not None and momentum is not None:
        count = x[0, :, 0].numel()
        with torch.no_grad():
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(var * (count / (count - 1)), momentum)
    return known(x, weight, bias, mean, var, eps, residual, relu)


def known(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """Normalize x [m, n, c, …] by given statistics [m, c]."""
    scale = (var + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale
    if bias is not None:
        shift = shift + bias
    y = torch.addcmul(_along(shift, x), x, _along(scale, x))
    if residual is not None:
        y = y + residual
    y = y.relu() if relu else y
    return y.to(x.dtype)


def _along(values: Tensor, x: Tensor) -> Tensor:
    """Values [m, c] beside x [m, n, c, …]."""
    return values.view(len(values), 1, -1, *[1] * (x.ndim - 3))
