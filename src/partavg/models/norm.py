"""BatchNorm with the two numbers that papers set differently, or GroupNorm in its place."""

from collections.abc import Callable
from functools import partial

from torch import nn

Norm = Callable[[int], nn.BatchNorm2d | nn.GroupNorm]
"""The number of channels -> a layer."""


def norm_layer(eps: float, momentum: float, groups: int) -> Norm:
    """BatchNorm for images, or with `groups` GroupNorm, for which other samples do not matter.

    `momentum` is the weight of the newest batch in BatchNorm's statistics, as in PyTorch.
    """
    if eps <= 0:
        raise ValueError(f"norm_eps {eps:g} is not above 0: it keeps variances away from 0")
    if not 0 < momentum <= 1:
        raise ValueError(
            f"norm_momentum {momentum:g} is not in (0, 1]: it is the weight of the newest batch, "
            f"1 less the decay"
        )
    if groups not in (0, 1, 2, 4, 8, 16):
        raise ValueError(
            f"norm_groups {groups} cannot divide layers of 16 channels: use 1, 2, 4, 8 or 16, or 0 "
            f"for BatchNorm"
        )
    if groups:
        return partial(nn.GroupNorm, groups, eps=eps)
    return partial(nn.BatchNorm2d, eps=eps, momentum=momentum)
