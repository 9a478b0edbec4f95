"""A small federation and the simulation that it must equal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from tests.flower.grid import FakeGrid
from tests.limits import seconds
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import Simulation, build, iid
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.core.seeds import fold, seeded
from partavg.evaluation import unchanged
from partavg.flower import client_app, server_app
from partavg.flower.run import FederatedRun
from partavg.flower.settings import Settings
from partavg.flower.transport import Transport
from partavg.session import Stop
from partavg.sinks.sink import SinkLike

CLIENTS = 3

BASE: dict[str, Any] = {
    "training.workers": CLIENTS,
    "training.batch": 4,
    "training.steps": 12,
    "training.lr": 0.05,
    "training.seed": 3,
    "averaging.interval": 4,
    "averaging.parts": 4,
    "solver.name": "sgd",
    "metrics.evaluate_every": 4,
    "flower.job": "test",
    "flower.wait": seconds(),
    "flower.patience": seconds(),
    "flower.deadline": seconds(),
}
PERIODIC = {"averaging.parts": 1}
SOLVERS: dict[str, dict[str, Any]] = {
    "sgd with momentum": {"solver.momentum": 0.9},
    "scaffold": {"solver.name": "scaffold", "solver.base.momentum": 0.5},
    "fedprox": {"solver.name": "fedprox", "solver.mu": 0.1, "solver.base.momentum": 0.9},
    "from outside": {"solver.name": "feddyn", "solver.alpha": 0.3, "solver.base.momentum": 0.9},
}


def model() -> nn.Module:
    """With BatchNorm, dropout and float64."""
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)
    ).double()


def everything() -> tuple[Tensor, Tensor]:
    """All samples there are."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 6, generator=generator, dtype=torch.float64)
    return x, (x[:, :3].sum(1) > x[:, 3]).long()


def split() -> list[Tensor]:
    """Uneven shares."""
    shares = iid(everything()[1], 6, seed=0)
    return [torch.cat(shares[:1]), torch.cat(shares[1:3]), torch.cat(shares[3:])]


def owned(context: Context) -> tuple[Tensor, Tensor]:
    """What a client has."""
    x, y = everything()
    mine = split()[int(context.node_config["partition-id"])]
    return x[mine], y[mine]


def held_back(context: Context) -> tuple[Tensor, Tensor]:
    """What a client has to test on: more than it trains on, so that batches differ in size."""
    x, y = owned(context)
    return torch.cat([x, x + 0.5]), torch.cat([y, y.roll(1)])


def app(**options: Any) -> ClientApp:
    """The client's half."""
    return client_app(model, F.cross_entropy, owned, **options)


def federation(folder: Path, changes: dict[str, Any], **options: Any) -> FakeGrid:
    """Three nodes, each with a folder of its own."""
    config = {**BASE, "flower.folder": str(folder / "run"), **changes}
    nodes = {
        100 + index: {"partition-id": index, "state-dir": str(folder / f"node{index}")}
        for index in range(config["training.workers"])
    }
    return FakeGrid(app(**options), config, nodes)


def server(
    grid: FakeGrid,
    aggregate: Aggregate = weighted_sum,
    *,
    has_samples: bool = True,
    sinks: Sequence[SinkLike] = (),
    stop: Stop | None = None,
    **changes: Any,
) -> FederatedRun:
    """The server's half, not yet started."""
    config = {**next(iter(grid.contexts.values())).run_config, **changes}
    chosen = Settings.read(config)
    agreement = chosen.agreement(model, F.cross_entropy, torch.device("cpu"), aggregate)
    test = everything() if has_samples else None
    transport = Transport(grid)
    return FederatedRun(chosen, agreement, transport, test, unchanged, sinks=sinks, stop=stop)


def simulation(changes: dict[str, Any], **given: Any) -> Simulation:
    """The simulation of the same settings, trained to its end."""
    chosen = Settings.read({**BASE, **changes})
    config = chosen.config
    with seeded(fold(config.training.seed, "model"), torch.device("cpu")):
        start = model()
    made = Simulation(
        start, F.cross_entropy, everything(), split(),
        schedule=build.schedule(config), lr=chosen.rate, batch=config.training.batch,
        solver=build.solver(config), partition=config.averaging.partition,
        weights=config.averaging.weights, buffers=config.averaging.buffers,
        participation=build.participation(config), engine="looped", seed=config.training.seed,
        **given,
    )  # fmt: skip
    for _ in made.train(chosen.steps):
        pass
    return made


def assert_equal(one: nn.Module, other: nn.Module, tolerance: float = 1e-9) -> None:
    """All tensors of two modules."""
    other_state = other.state_dict()
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, other_state[name], rtol=0, atol=tolerance)


client = app()
app_server = server_app(model, F.cross_entropy, everything)
