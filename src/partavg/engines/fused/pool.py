"""Pooling treats every sample by itself: the samples of all workers are one batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.kernels.backend import uses_triton

LAYERS: tuple[Any, ...] = (
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.MaxPool1d,
    nn.MaxPool2d,
)
FUNCTIONS = (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)


def pool(by: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Pool x [m, n, c, …] by a layer or a function of torch."""
    if isinstance(by, nn.AdaptiveAvgPool2d) and by.output_size in (1, (1, 1)):
        return x.mean((-2, -1), keepdim=True)
    if uses_triton(x) and x.dtype != torch.float64 and _halves(by, x, *args, **kwargs):
        from partavg.engines.fused.pool_triton import Halved

        return Halved.apply(x)  # type: ignore[no-untyped-call]
    return by(x.flatten(0, 1), *args, **kwargs).unflatten(0, x.shape[:2])


def _halves(by: Any, x: Tensor, *args: Any, **kwargs: Any) -> bool:
    """Whether every pixel is in one of the windows of 2 x 2 whose largest value is asked for."""
    if isinstance(by, nn.MaxPool2d):
        given = by.kernel_size, by.stride, by.padding, by.dilation, by.ceil_mode
        return not by.return_indices and _by_two(x, *given)
    return by is F.max_pool2d and not kwargs.get("return_indices") and _by_two(x, *args, **kwargs)


def _by_two(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    """The arguments of torch's function."""
    plain = padding in (0, (0, 0)) and dilation in (1, (1, 1)) and not return_indices
    even = ceil_mode or (x.shape[-2] % 2 == 0 and x.shape[-1] % 2 == 0)
    two = kernel_size in (2, (2, 2)) and stride in (None, 2, (2, 2))
    return x.ndim == 5 and plain and even and two
