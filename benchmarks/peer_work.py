"""The work that benchmarks/peers.py gives to each peer; needs torch and nothing of ours.

Federated averaging: in each round some users are drawn, each takes steps of plain SGD from the
common model, and the mean of theirs is the next one. Where the work asks for it, that is evaluated
after every so many rounds.
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
    evaluate: int = 0
    """Rounds from one evaluation to the next; 0 for none before the end."""
    whole: int = 0
    """Rounds of all of it, where its author says so."""

    @property
    def steps(self) -> int:
        """One epoch over a user's samples."""
        return self.samples // self.batch


WORKS = {
    "mlp": Work(128, 320, 128, 32, 0.05, (64,)),
    "tiny": Work(6, 8, 3, 4, 0.1, (64,)),
    "cifar10": Work(1000, 50, 50, 10, 0.1, (3, 32, 32), 10, 1500),
}
"""`cifar10` is pfl-research's public benchmark of image classification, `tiny` is for trying."""

AT_ONCE = 2000
"""Samples of a batch when a model is evaluated."""


def model(name: str, seed: int = 0) -> nn.Module:
    """An MLP 64-64-10, or the CNN of pfl-research's benchmark (1,626,442 parameters)."""
    torch.manual_seed(seed)
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
    seed: int

    def model(self) -> nn.Module:
        """Where training begins."""
        return model(self.name, self.seed)

    def due(self, done: int) -> bool:
        """Whether the model is evaluated after so many rounds."""
        return self.work.evaluate > 0 and done % self.work.evaluate == 0


def given() -> Given:
    """As peers.py says it: the work, a file of samples, rounds, a device, a seed."""
    name, path, rounds, device, seed = sys.argv[1:]
    read: dict[str, Any] = torch.load(path, weights_only=True, mmap=True)
    samples, test = (read["x"], read["y"]), (read["test_x"], read["test_y"])
    return Given(name, WORKS[name], samples, test, int(rounds), torch.device(device), int(seed))


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
def judged(net: nn.Module, test: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """The mean loss and the accuracy on samples that lie where the model is."""
    net.eval()
    right = loss = 0.0
    for x, y in zip(*(torch.split(t, AT_ONCE) for t in test), strict=True):
        outputs = net(x)
        loss += nn.functional.cross_entropy(outputs, y, reduction="sum").item()
        right += (outputs.argmax(1) == y).sum().item()
    return loss / len(test[1]), right / len(test[1])


def say(net: nn.Module, clock: Clock, told: Given, version: str) -> None:
    """Print seconds of each round, and what the model has learned."""
    x, y = (t.to(told.device) for t in told.test)
    loss, accuracy = judged(net.to(told.device), (x, y))
    seconds = [after - before for before, after in zip(clock.ends, clock.ends[1:], strict=False)]
    found = {"seconds": seconds, "loss": loss, "accuracy": accuracy}
    print(json.dumps({"version": version, **found}), flush=True)
