"""Rotary positions in plain torch, one worker after another."""

import torch
from torch import Tensor

from partavg.models.gpt import rotated


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """X [m, n, heads, t, d], turned by angles of cosines and sines [t, d / 2]."""
    return torch.stack([rotated(own, (cos, sin)) for own in x])
