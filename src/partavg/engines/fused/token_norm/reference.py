"""LayerNorm and RMSNorm in plain torch: what runs without kernels."""

from torch import Tensor
from torch.nn import functional as F


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, eps: float, rms: bool
) -> Tensor:
    """Normalize x [m, n, …] over its last axes, with weights and biases [m, …] of these axes."""
    shape = x.shape[-axes:]
    y = F.rms_norm(x, shape, eps=eps) if rms else F.layer_norm(x, shape, eps=eps)
    if weight is not None:
        y = y * _along(weight, y, axes)
    if bias is not None:
        y = y + _along(bias, y, axes)
    return y.to(x.dtype)


def _along(values: Tensor, x: Tensor, axes: int) -> Tensor:
    """Values [m, …] beside x [m, n, …, …]."""
    return values.view(len(values), *[1] * (x.ndim - axes - 1), *values.shape[1:])
