"""The mean of a loss over samples, however a loss adds up the samples of a batch."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from partavg.core.inputs import Inputs, count
from partavg.scores.score import Pair
from partavg.scores.shapes import IGNORED

Reduction = Literal["mean", "sum", "none"]
_FEW, _ALL = 8, 1 << 62  # samples on which a loss is tried


class MeanLoss:
    """Makes sums and counts of the losses of batches.

    A mean counts as often as there are samples in the batch or, if targets are integers, as there
    are targets that are not ignored; a sum is divided by as many. PyTorch's own losses say which
    of the two they are; of others it is found out once: the loss of samples that are all there
    twice is the same if it is a mean.
    """

    def __init__(self, loss: Callable[..., Any]) -> None:
        self.loss = loss
        self.reduction: Reduction | None = _said(loss, "reduction")
        """None until it is found out."""
        ignored = _said(loss, "ignore_index")
        self._ignored = IGNORED if ignored is None else int(ignored)

    def find_out(self, batch: Callable[[int, int], tuple[Any, Inputs]]) -> None:
        """Try the loss, unless it is known, on a few samples and, if they tell nothing, on all.

        `batch(n, times)` are outputs and targets of about n samples. A loss of 0, or one that is
        not finite, tells nothing: the next batch may.
        """
        for samples in (_FEW, _ALL):
            if self.reduction is None:
                values = (self.loss(*batch(samples, times)) for times in (1, 2))
                once, twice = (torch.as_tensor(value).double() for value in values)
                self.reduction = _seen(once, twice)

    def of(self, outputs: Any, targets: Inputs) -> Pair:
        """The sum and the count of a batch."""
        value = torch.as_tensor(self.loss(outputs, targets)).double()
        counted = self._count(targets)
        if value.ndim:
            whole = isinstance(targets, Tensor) and value.shape == targets.shape
            per_target = whole and isinstance(counted, Tensor)
            return value.sum(), counted if per_target else float(value.numel())
        if self.reduction == "sum":
            return value, counted
        total = value * counted
        if isinstance(counted, Tensor):
            total = torch.where(counted > 0, total, 0)  # the mean of none is NaN
        return total, counted

    def _count(self, targets: Inputs) -> Tensor | float:
        if not isinstance(targets, Tensor):
            return float(count(targets))
        if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
            return float(len(targets))
        return (targets.long() != self._ignored).sum().double()


def _seen(once: Tensor, twice: Tensor) -> Reduction | None:
    """How a loss adds up, from that of some samples and that of all of them twice."""
    if once.ndim:
        return "none"
    if not bool(once.isfinite() & twice.isfinite() & (once != 0)):
        return None
    return "sum" if abs(float(twice / once) - 2) < 0.01 else "mean"


def _said(loss: Any, option: str) -> Any:
    """What a loss says of itself: a module's attribute, or the default of a function's argument."""
    if hasattr(loss, option):
        return getattr(loss, option)
    try:
        parameter = inspect.signature(loss).parameters.get(option)
    except (TypeError, ValueError):
        return None
    return None if parameter is None or parameter.default is parameter.empty else parameter.default
