"""Cross-entropy with Triton: losses, and gradients in the memory of logits."""

import torch
import triton
from torch import Tensor

from partavg.engines.fused.head_loss import cross_entropy_kernels as kernels
from partavg.kernels.launch import launch

_BLOCK = 4096  # words that a program holds at a time, at most


def losses_(logits: Tensor, words: Tensor, scale: Tensor) -> Tensor:
    """The cross-entropy of words [m, n]; logits [m, n, w] become their gradients times [m] scales.

    Of a negative word both are 0.
    """
    workers, count, width = logits.shape
    found = torch.empty(workers, count, dtype=torch.float32, device=logits.device)
    block = min(_BLOCK, triton.next_power_of_2(width))
    launch(
        kernels.cross_entropy,
        (count, workers),
        (logits, words.contiguous(), scale.contiguous(), found),
        {"count": count, "width": width},
        BLOCK=block,
        num_warps=max(1, min(8, block // 256)),
    )
    return found
