"""Your data, model and metric; keyword-only arguments are keys of the recipe."""

import torch
from torch import Tensor, nn

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


def far_off(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """How often the two best guesses are both wrong: a sum over a batch, and of how many."""
    return (outputs.topk(2).indices != targets[:, None]).all(1).sum(), len(targets)
