"""BatchNorm with the two numbers that papers set differently."""

from collections.abc import Callable
from functools import partial

from torch import nn

Norm = Callable[[int], nn.BatchNorm2d]
"""The number of channels -> a layer."""


def batch_norm(eps: float, momentum: float) -> Norm:
    """BatchNorm for images; `momentum` is the weight of the newest batch, as in PyTorch."""
    if eps <= 0:
        raise ValueError(f"norm_eps {eps:g} is not above 0: it keeps variances away from 0")
    if not 0 < momentum <= 1:
        raise ValueError(
            f"norm_momentum {momentum:g} is not in (0, 1]: it is the weight of the newest batch, "
            f"1 less the decay"
        )
    return partial(nn.BatchNorm2d, eps=eps, momentum=momentum)
