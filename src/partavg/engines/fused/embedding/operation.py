"""nn.Embedding for all workers at once."""

from typing import Any

import torch
from torch import Tensor

from partavg.engines.fused.rows import Rows


def covers(layer: Any) -> bool:
    """Whether its gradient is that of any other table."""
    return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse


def run(layer: Any, rows: Rows, name: str, words: Tensor) -> Tensor:
    """The vectors of words [m, n, …]."""
    worker = torch.arange(len(words), device=words.device)[:, None]
    weight = rows.tensor_of(name, "weight")
    found = rows.cast(weight[worker, words.flatten(1)]).view(*words.shape, -1)
    if layer.padding_idx is None:
        return found
    return torch.where((words == layer.padding_idx)[..., None], found.detach(), found)
