"""Embeddings in plain torch, one worker after another."""

import torch
from torch import Tensor
from torch.nn import functional as F


def embedding(words: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
    """The vectors of words [m, n, …] from tables [m, words, e]."""
    return torch.stack(
        [F.embedding(own, table, padding_idx) for own, table in zip(words, weight, strict=True)]
    )
