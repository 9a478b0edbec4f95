"""The work that benchmarks/peers.py gives to each peer; needs torch and nothing of ours.

Federated averaging: in each round some users are drawn, each takes steps of plain SGD from the
common model, and the mean of theirs is the next one.
"""

import json
import sys
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Work(NamedTuple):
    """Who trains how much."""

    users: int
    samples: int
    """Of each user."""
    cohort: int
    """Users drawn for a round."""
    batch: int
    lr: float
    shape: tuple[int, ...]

    @property
    def steps(self) -> int:
        """One epoch over a user's samples."""
        return self.samples // self.batch


WORKS = {
    "mlp": Work(128, 320, 128, 32, 0.05, (64,)),
    "tiny": Work(6, 8, 3, 4, 0.1, (64,)),
    "cifar10": Work(1000, 50, 50, 10, 0.1, (3, 32, 32)),
}
"""`cifar10` is pfl-research's public benchmark of image classification, `tiny` is for trying."""


def model(name: str) -> nn.Module:
    """An MLP 64-64-10, or the CNN of pfl-research's benchmark (1,626,442 parameters)."""
    torch.manual_seed(0)
    if name != "cifar10":
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    net = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
        *(nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    )
    for layer in net:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return net


class Given(NamedTuple):
    """What a peer is told on its command line."""

    name: str
    work: Work
    samples: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    rounds: int
    device: torch.device


def given() -> Given:
    """As peers.py says it: the work, a file of samples, rounds, a device."""
    name, path, rounds, device = sys.argv[1:]
    read: dict[str, Any] = torch.load(path, weights_only=True)
    samples, test = (read["x"], read["y"]), (read["test_x"], read["test_y"])
    return Given(name, WORKS[name], samples, test, int(rounds), torch.device(device))


class Clock:
    """When each round ended."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.ends = [perf_counter()]

    def end(self) -> None:
        """A round has ended, and so has all that it started on a GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.ends.append(perf_counter())


@torch.no_grad()
def say(net: nn.Module, clock: Clock, told: Given, version: str) -> None:
    """Print seconds of each round, and what the model has learned."""
    net = net.to(told.device).eval()
    right = loss = 0.0
    for x, y in zip(*(torch.split(t, 1000) for t in told.test), strict=True):
        outputs = net(x.to(told.device))
        loss += nn.functional.cross_entropy(outputs, y.to(told.device), reduction="sum").item()
        right += (outputs.argmax(1).cpu() == y).sum().item()
    seconds = [after - before for before, after in zip(clock.ends, clock.ends[1:], strict=False)]
    count = len(told.test[1])
    found = {"seconds": seconds, "loss": loss / count, "accuracy": right / count}
    print(json.dumps({"version": version, **found}))
