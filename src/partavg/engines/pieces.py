"""Gradients as autograd made them, in the pieces that a solver steps."""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor

from partavg.core.layout import Layout

_MOST_ON_CPU, _MOST_ON_GPU = 1 << 21, 1 << 28  # elements that a solver steps at a time
_SMALL_ON_CPU = 1 << 17  # elements that are copied sooner than a solver is called once more


def pieces(grads: list[Tensor], layout: Layout) -> Iterator[tuple[slice, Tensor]]:
    """Columns and gradients of some rows, in memory of their own; uses up the list.

    Small gradients that follow each other are joined, if all of them are few. Large ones are cut
    along their channels and let go one by one, so that what is copied fits a processor's cache. A
    copy it must be where autograd made one tensor for two parameters, expanded it from a smaller
    one, or laid it out otherwise.
    """
    rows, on_cpu = len(grads[0]), grads[0].is_cpu
    most = _MOST_ON_CPU if on_cpu else _MOST_ON_GPU
    few = sum(grad.numel() for grad in grads) <= most
    small = 0 if not few else _SMALL_ON_CPU if on_cpu else most
    owners = Counter(grad.untyped_storage().data_ptr() for grad in grads)
    left = ((first, grads.pop(0)) for first in layout.starts)
    for joined, run in groupby(left, lambda one: one[1].numel() <= small):
        if joined:
            starts, some = zip(*run, strict=True)
            block = torch.cat([grad.reshape(rows, -1) for grad in some], 1)
            yield slice(starts[0], starts[0] + block.shape[1]), block
            continue
        for first, grad in run:
            shared = owners[grad.untyped_storage().data_ptr()] > 1
            yield from _cut(first, grad, most, shared=shared)


def _cut(first: int, grad: Tensor, most: int, *, shared: bool) -> Iterator[tuple[slice, Tensor]]:
    """A large gradient, which begins in a column, at most so many elements at a time."""
    rows = len(grad)
    grad = grad.unsqueeze(-1)  # a scalar has no channels, but may be cut all the same
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
