"""Training loops as users write them, and the simulator on the same data, for comparison."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import partavg
from partavg.core.seeds import seeded
from partavg.data.batches import Batches

WORKERS, BATCH, STEPS, LR = 3, 4, 11, 0.05


def model(rank: int = 0) -> nn.Module:
    """The simulator's; those of other ranks begin elsewhere, and attach makes them alike."""
    with seeded(7 + rank, torch.device("cpu")):
        return nn.Sequential(
            nn.Linear(5, 8, bias=False),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Linear(8, 6),
            nn.ReLU(),
            nn.Linear(6, 3),
        ).double()


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    targets = torch.arange(60) % 3
    inputs = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    return inputs + 2 * torch.eye(5, dtype=torch.float64)[targets], targets


def split() -> list[Tensor]:
    return list(torch.split(torch.arange(60), [14, 20, 26]))


@dataclass
class Case:
    """A way to train: `attach`'s arguments, the optimizer, and what they are in the simulator."""

    options: dict[str, Any]
    optimizer: tuple[str, dict[str, Any]] = ("SGD", {"momentum": 0.9, "weight_decay": 1e-2})
    simulated: dict[str, Any] = field(default_factory=dict)
    """The simulator's arguments, where they have other names."""
    decay: float = 1.0
    """The learning rate is multiplied by this after every step."""
    settled: tuple[int, ...] = ()
    """Steps after which an interval changes: ranks are averaged at once, the simulator's rows not
    before they go on."""


def attached(rank: int, case: Case, steps: int = STEPS) -> list[dict[str, Tensor]]:
    """The model after every step, and at the end."""
    own = case.options.get("local")  # what is local begins as each rank has it
    net, (inputs, targets) = model(0 if own else rank), samples()
    name, options = case.optimizer
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=LR, **options)
    rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, case.decay)
    batches = Batches(split(), BATCH, 0)
    seen = []
    with partavg.attach(net, optimizer, **case.options) as averager:
        for step in range(1, steps + 1):
            chosen = batches(step, None)[0][rank]
            loss = F.cross_entropy(net(inputs[chosen]), targets[chosen])
            averager.see(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()
            seen.append(copy(net))
    seen.append(copy(net))
    return seen


def simulated(case: Case, steps: int = STEPS) -> list[list[dict[str, Tensor]]]:
    """The same by the simulator: for every worker its model after every step, and u at the end."""
    given = {**case.options, **case.simulated}
    named, offsets = given.get("partition"), tuple(given.pop("offsets", ()))
    parts = len(offsets or named) if offsets or isinstance(named, list) else given["interval"]
    parts = given.pop("parts", parts)
    schedule = partavg.Schedule(given.pop("interval"), parts, offsets=offsets)
    simulation = partavg.Simulation(
        model(),
        F.cross_entropy,
        samples(),
        split(),
        schedule=schedule,
        lr=lambda step: LR * case.decay ** (step - 1),
        batch=BATCH,
        engine="looped",
        **given,
    )
    rows: list[list[dict[str, Tensor]]] = [[] for _ in range(WORKERS)]
    for _ in simulation.train(steps):
        for row, seen in enumerate(rows):
            seen.append(copy(simulation.worker(row)))
    for seen in rows:
        seen.append(copy(simulation.consensus()))
    return rows


def copy(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of two models."""
    return max(
        float((one[name] - other[name]).abs().max())
        for name in one
        if one[name].is_floating_point()
    )


Loop = Callable[..., Any]
