"""What ours is compared with computes what ours computes: losses of a few steps."""

import copy
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import partavg
from partavg.models import MODELS

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
WORKERS, BATCH, STEPS = 3, 4, 3


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


def task() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = MODELS["resnet20"]((3, 8, 8), 10)
    return model, torch.randn(WORKERS, BATCH, 3, 8, 8), torch.randint(10, (WORKERS, BATCH))


def ours() -> Tensor:
    """Losses of workers that begin alike and are not averaged, on the same batch in every step."""
    model, x, y = task()
    simulation = partavg.Simulation(
        model,
        F.cross_entropy,
        (x.flatten(0, 1), y.flatten()),
        list(torch.arange(WORKERS * BATCH).view(WORKERS, BATCH)),
        schedule=partavg.Schedule(STEPS + 1),
        solver=partavg.SGD(momentum=0.9),
        lr=0.01,
        batch=BATCH,
        engine="looped",
    )
    return torch.stack([record.losses for record in simulation.train(STEPS)])


def models(model: nn.Module) -> list[nn.Module]:
    return [copy.deepcopy(model) for _ in range(WORKERS)]


@pytest.mark.parametrize("name", ["by_vmap", "by_groups"])
def test_torch(name: str, load: Callable[[str], ModuleType]) -> None:
    model, x, y = task()
    make: Any = getattr(load("rivals"), name)
    iterate = make(models(model), x, y, torch.float32, compiled=False)
    theirs = torch.stack([iterate() for _ in range(STEPS)])
    torch.testing.assert_close(theirs, ours(), rtol=2e-4, atol=2e-4)


def test_groups_in_16_bits(load: Callable[[str], ModuleType]) -> None:
    """On a CPU, torch has no autocast inside vmap."""
    model, x, y = task()
    theirs = load("rivals").by_groups(models(model), x, y, torch.bfloat16, compiled=False)()
    torch.testing.assert_close(theirs.float(), ours()[0], rtol=0.05, atol=0.05)


def test_jax(load: Callable[[str], ModuleType]) -> None:
    pytest.importorskip("jax")
    model, x, y = task()
    iterate = load("rivals_jax").by_jax(models(model), x, y, "float32")
    theirs = torch.stack([torch.tensor(list(map(float, iterate()))) for _ in range(STEPS)])
    torch.testing.assert_close(theirs, ours(), rtol=2e-4, atol=2e-4)
