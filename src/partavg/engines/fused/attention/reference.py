"""Attention in plain torch, one worker after another, written out."""

import math

import torch
from torch import Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """What queries [m, n, h, t, d] find at keys and values."""
    found = []
    for q, k, v in zip(query, key, value, strict=True):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
            scores = scores.masked_fill(~seen, -math.inf)
        found.append(scores.softmax(-1) @ v)
    return torch.stack(found)
