"""Your data, model and metric; keyword-only arguments are keys of the recipe."""

import torch
from torch import Tensor, nn

import partavg

Pair = tuple[Tensor, Tensor]


def points(*, count: int = 3000) -> tuple[Pair, Pair]:
    """Inputs and targets to train on, and others to test on."""
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))
    targets = inputs[:, :4].argmax(1)
    cut = count * 5 // 6
    return (inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:])


class Net(nn.Sequential):
    """Any module; it is told the shape of an input and the number of classes if it asks."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, hidden: int = 64) -> None:
        super().__init__(nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, classes))


largest = partavg.Metric(
    "largest", lambda moment: moment.simulation.largest().max(), column="largest weight"
)
