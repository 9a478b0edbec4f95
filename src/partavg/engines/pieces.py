"""Gradients as autograd made them, in the pieces that a solver steps."""

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from partavg.core.layout import Layout

_MOST_ON_CPU, _MOST_ON_GPU = 1 << 21, 1 << 28  # elements that a solver steps at a time


def pieces(grads: list[Tensor], layout: Layout) -> Iterator[tuple[slice, Tensor]]:
    """Columns and gradients of some rows, in memory of their own; uses up the list.

    Small gradients are joined. Large ones are cut along their channels and let go one by one, so
    that what is copied fits a processor's cache. A copy it must be where autograd made one tensor
    for two parameters, expanded it from a smaller one, or laid it out otherwise.
    """
    rows = len(grads[0])
    most = _MOST_ON_CPU if grads[0].is_cpu else _MOST_ON_GPU
    if sum(grad.numel() for grad in grads) <= most:
        joined = torch.cat([grad.reshape(rows, -1) for grad in grads], 1)
        yield slice(0, layout.size), joined
        return
    owners = Counter(grad.untyped_storage().data_ptr() for grad in grads)
    for first in layout.starts:
        grad = grads.pop(0).unsqueeze(-1)  # a scalar has no channels, but may be cut all the same
        shared = owners[grad.untyped_storage().data_ptr()] > 1
        count = max(1, most * grad.shape[1] // max(1, grad.numel()))
        for block in torch.split(grad, count, 1):
            piece = block.reshape(rows, -1)
            if shared or not _dense(piece):
                piece = piece.clone(memory_format=torch.contiguous_format)
            yield slice(first, first := first + piece.shape[1]), piece


def columns(found: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Gradients [m, d] that are gathered already, as many columns at a time as a solver steps."""
    most = max(1, (_MOST_ON_CPU if found.is_cpu else _MOST_ON_GPU) // len(found))
    for start in range(0, found.shape[1], most):
        cut = slice(start, min(start + most, found.shape[1]))
        yield cut, found[:, cut]


def _dense(piece: Tensor) -> bool:
    """Whether rows are without gaps and each has memory of its own."""
    height, width = piece.shape
    return (width < 2 or piece.stride(1) == 1) and (height < 2 or piece.stride(0) >= width)
