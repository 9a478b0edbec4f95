"""Fully connected networks."""

from itertools import pairwise
from math import prod

from torch import nn


def mlp(
    shape: tuple[int, ...],
    classes: int,
    *,
    hidden: tuple[int, ...] = (64,),
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> nn.Module:
    """Linear layers with ReLU between them; no hidden layer gives logistic regression."""
    if min(hidden, default=1) < 1:
        raise ValueError(f"a hidden layer of width {min(hidden)} is no layer: use 1 or more")
    layers: list[nn.Module] = [nn.Flatten()]
    widths = (prod(shape), *hidden)
    for inputs, outputs in pairwise(widths):
        layers.append(nn.Linear(inputs, outputs))
        if batch_norm:
            layers.append(nn.BatchNorm1d(outputs))
        layers.append(nn.ReLU())
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def logistic(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression: one linear layer."""
    return mlp(shape, classes, hidden=())
