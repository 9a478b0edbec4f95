"""Pooling in plain torch: what runs without kernels, and what they are compared with."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def pool(by: Callable[..., Any], x: Tensor, *args: Any, **options: Any) -> Any:
    """Pool x [m, n, c, …] by a layer or a function of torch."""
    return by(x.flatten(0, 1), *args, **options).unflatten(0, x.shape[:2])
