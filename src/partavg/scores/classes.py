"""Scores of classes: accuracy, top-k, those of tokens, F1 of labels."""

from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn import functional as F

from partavg.scores.score import Unmeasurable, described
from partavg.scores.shapes import IGNORED, alike, classified, counted


def accuracy(
    outputs: Any, targets: Tensor, *, axis: int | None = None, ignore_index: int = IGNORED
) -> tuple[Tensor, Tensor]:
    """The share of targets at which the largest output is.

    The classes are along `axis`: 1 or the last one, as the shapes say, if none is given.

    >>> accuracy(torch.eye(3), torch.tensor([0, 1, -100]))
    (tensor(2), tensor(2., dtype=torch.float64))
    """
    return top_k(outputs, targets, k=1, axis=axis, ignore_index=ignore_index)


def token_accuracy(
    outputs: Any, targets: Tensor, *, axis: int = -1, ignore_index: int = IGNORED
) -> tuple[Tensor, Tensor]:
    """The same of tokens, whose classes are along the last axis: [n, tokens, classes]."""
    return accuracy(outputs, targets, axis=axis, ignore_index=ignore_index)


def top_k(
    outputs: Any,
    targets: Tensor,
    *,
    k: Annotated[int, Ge(1)] = 5,
    axis: int | None = None,
    ignore_index: int = IGNORED,
) -> tuple[Tensor, Tensor]:
    """The share of targets that are among the k largest outputs."""
    logits, targets = classified(outputs, targets, axis)
    classes = logits.shape[-1]
    if k >= classes:
        raise Unmeasurable(
            f"every target is among the {k} largest of {classes} outputs: use a smaller k"
        )
    valid, count = counted(targets, classes, ignore_index)
    if k == 1:
        right = logits.argmax(-1) == targets
    else:
        right = (logits.topk(k, dim=-1).indices == targets.unsqueeze(-1)).any(-1)
    return (right & valid).sum(), count


def perplexity(
    outputs: Any, targets: Tensor, *, axis: int = -1, ignore_index: int = IGNORED
) -> tuple[Tensor, Tensor]:
    """The exponential of the mean of −log p(target) over all targets; outputs are logits.

    What is added up are the sum and the count; the metric takes the exponential of their ratio.
    """
    logits, targets = classified(outputs, targets, axis)
    classes = logits.shape[-1]
    valid, count = counted(targets, classes, ignore_index)
    known = targets.clamp(0, classes - 1).flatten()
    flat = logits.reshape(-1, classes)
    exact = flat.to(torch.promote_types(flat.dtype, torch.float32))
    losses = F.cross_entropy(exact, known, reduction="none").double()
    return torch.where(valid.flatten(), losses, 0).sum(), count


def f1(
    outputs: Any,
    targets: Tensor,
    *,
    average: Literal["micro", "macro"] = "micro",
    threshold: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """2 tp / (2 tp + fp + fn) of labels, several per sample: those with outputs above a threshold.

    0 is for logits, 0.5 for probabilities. "micro" counts all labels together, "macro" is the mean
    over those that occur or are predicted; targets are 0 or 1.
    """
    predicted, actual, known = _labels(outputs, targets, threshold)
    if average == "macro" and predicted.ndim != 2:
        raise Unmeasurable(f"{described(predicted, targets)} are not [samples, labels]")
    over = None if average == "micro" else 0
    right = (predicted & actual).sum(over).double()
    count = predicted.sum(over).double() + actual.sum(over).double()
    return 2 * right, torch.where(known, count, torch.nan)


def binary_accuracy(
    outputs: Any, targets: Tensor, *, threshold: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The share of targets, 0 or 1, on whose side of the threshold the output is."""
    predicted, actual, known = _labels(outputs, targets, threshold)
    count = torch.where(known, float(actual.numel()), torch.nan).double()
    return (predicted == actual).sum().double(), count


def _labels(outputs: Any, targets: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """What is predicted, what is true, and whether all targets are 0 or 1."""
    values, targets = alike(outputs, targets)
    return values > threshold, targets == 1, ((targets == 0) | (targets == 1)).all()
