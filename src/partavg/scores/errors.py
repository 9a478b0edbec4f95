"""Scores of numbers: how far outputs are from targets."""

from typing import Any

from torch import Tensor

from partavg.scores.shapes import alike


def mse(outputs: Any, targets: Tensor) -> tuple[Tensor, int]:
    """The mean squared error, over all numbers of all samples."""
    values, targets = alike(outputs, targets)
    return (values.double() - targets.double()).square().sum(), targets.numel()


def mae(outputs: Any, targets: Tensor) -> tuple[Tensor, int]:
    """The mean absolute error, over all numbers of all samples."""
    values, targets = alike(outputs, targets)
    return (values.double() - targets.double()).abs().sum(), targets.numel()
