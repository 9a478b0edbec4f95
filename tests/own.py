"""What a user has in a file of their own: one of each kind that a recipe names."""

import sys
from pathlib import Path

OWN = '''
"""All kinds, with options."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import partavg
from helpers import clouds  # lies beside this file

with open("executed", "a") as log:
    log.write("once\\n")


def points(*, count: int = 120):
    return clouds(count), clouds(30)


class Net(nn.Module):
    def __init__(self, shape, classes, *, hidden: int = 6):
        super().__init__()
        self.first, self.last = nn.Linear(*shape, hidden), nn.Linear(hidden, classes)

    def forward(self, inputs):
        return self.last(self.first(inputs).tanh())


def smooth(outputs, targets, *, by: float = 0.1):
    return F.cross_entropy(outputs, targets, label_smoothing=by)


def in_turn(labels, workers, seed, *, skip: int = 0):
    return [torch.arange(skip + worker, len(labels), workers) for worker in range(workers)]


def every_other(layout, parts, seed):
    spans = [partavg.Span(column, column + 1) for column in range(layout.size)]
    return partavg.Partition(layout.size, tuple(tuple(spans[p::parts]) for p in range(parts)))


@dataclass(frozen=True, slots=True)
class Clipped(partavg.SGD):
    most: float = 1.0

    def step_(self, params, grads, state, now):
        partavg.SGD.step_(self, params, grads.clamp(-self.most, self.most), state, now)


def falling(lr, steps, lengths, *, power: float = 1.0):
    return lambda step: lr * (1 - (step - 1) / steps) ** power


def alternate(interval, workers, seed, *, rest: int = 2):
    return lambda step: np.arange(step, step + workers) % rest == 0


def never(decays, scale, *, until: int = 3):
    return partavg.PostLocal(until)


def between(messages, weights, about, *, share: float = 0.5):
    ends = messages.aminmax(dim=0)
    return torch.lerp(ends.min, ends.max, share)


@dataclass(frozen=True)
class Louder(partavg.attacks.Attack):
    by: float = 2.0

    def lie(self, messages, liars, about):
        return self.by * messages[liars]


largest = partavg.Metric(
    "largest", lambda moment: moment.simulation.largest().max(), column="largest"
)


class Lines:
    def begin(self, about):
        self.file = open(about.folder / "lines.txt", "a")

    def take(self, row):
        print(row["step"], file=self.file)

    def end(self, summary):
        self.file.close()
'''

HELPERS = """
import torch


def clouds(count):
    targets = torch.arange(count) % 3
    noise = torch.randn(count, 5, generator=torch.Generator().manual_seed(count))
    return noise + 2 * torch.eye(5)[targets], targets
"""

RECIPE = """
data = {{name = "{0}:points", count = 96}}
split = {{name = "{0}:in_turn", skip = 0}}
model = {{name = "{0}:Net", hidden = 5}}
loss = {{name = "{0}:smooth", by = 0.2}}
lr_schedule = {{name = "{0}:falling", power = 2.0}}
pace = {{name = "{0}:alternate", rest = 3}}
adapt = {{name = "{0}:never", until = 2}}
aggregate = {{name = "{0}:between", share = 0.4}}
attack = {{name = "{0}:Louder", by = 1.5, fraction = 0.25}}
averaging = {{interval = 3, partition = "{0}:every_other"}}
training = {{workers = 4, batch = 4, steps = 6}}
engine.name = "vmapped"
[solver]
name = "fedprox"
base = {{name = "{0}:Clipped", most = 0.5, momentum = 0.5}}
[metrics]
extra = ["{0}:largest"]
sinks = ["{0}:Lines"]
"""


def write(folder: Path, named: str = "own.py") -> Path:
    """The files, and a recipe that names their things."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.modules.pop("helpers", None)  # that of another test in this process
    (folder / f"{named.removesuffix('.py')}.py").write_text(OWN)
    (folder / "helpers.py").write_text(HELPERS)
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(named))
    return recipe
