"""A user's program, checked by mypy --strict against the installed wheel (.ci/run); never run."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import partavg
from partavg import Schedule, Simulation, Table

samples: tuple[Tensor, Tensor] = (torch.randn(40, 4), torch.zeros(40, dtype=torch.long))
split: list[Tensor] = partavg.iid(samples[1], workers=4, seed=0)
simulation: Simulation = partavg.Simulation(
    nn.Linear(4, 2),
    F.cross_entropy,
    samples,
    split,
    schedule=Schedule.partial(4),
    solver=partavg.SGD(momentum=0.9),
    lr=partavg.Cosine(0.1, steps=20),
)
for record in simulation.train(until=10):
    step: int = record.step
table: Table = partavg.follow(simulation, until=20, test=samples)
found: partavg.Evaluation = partavg.evaluate(simulation.consensus(), F.cross_entropy, samples)
accuracy: float | None = found.accuracy
summary: object = partavg.load_run("runs/mine").summary["accuracy"]
with partavg.attach(nn.Linear(4, 2), interval=8, parts=4) as averager:
    averager.step()
    sent: int = averager.bytes
wrong: str = simulation.discrepancy().total  # type: ignore[assignment]  # --strict sees this
