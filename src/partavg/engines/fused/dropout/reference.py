"""Dropout in plain torch, one worker after another."""

from collections.abc import Callable

import torch
from torch import Tensor

from partavg.engines.dropout import KeyedDropout


def dropout(function: Callable[..., Tensor], x: Tensor, keys: Tensor, p: float) -> Tensor:
    """Drop some of x [m, n, …] with masks from keys [m]."""
    found = []
    for own, key in zip(x, keys, strict=True):
        with KeyedDropout(key):
            found.append(function(own, p))
    return torch.stack(found)
