"""Columns gathered into one block, as on a GPU, against span after span."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from partavg import Schedule, Simulation
from partavg.core import joined
from partavg.core.partition import Span
from partavg.core.views import Slices
from partavg.solvers import SOLVERS

AVERAGED_AS_PARAMETERS = {"sgd", "adam", "adamw", "muon"}  # never encoded
TWO_NUMBERS_A_COLUMN = {"scaffold"}


def trained(solver: Any) -> Simulation:
    torch.manual_seed(0)
    x = torch.randn(60, 5).double()
    layers = [nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)]
    made = Simulation(
        nn.Sequential(*layers).double(), F.cross_entropy, (x, (x[:, 0] > 0).long()),
        [range(20), range(20, 40), range(40, 60)], lr=0.05, batch=4,
        schedule=Schedule.partial(3), solver=solver,
    )  # fmt: skip
    for _ in made.train(10):
        pass
    return made


@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_one_block_is_span_after_span(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = trained(SOLVERS[name]())
    seen = []
    gathered = joined.gathered

    def spy(columns: Slices, state: Any, spans: Any) -> Any:
        seen.append(columns)
        return gathered(columns, state, spans)

    monkeypatch.setattr(joined, "at_once", lambda columns: isinstance(columns, Slices))
    monkeypatch.setattr(joined, "gathered", spy)
    together = trained(SOLVERS[name]())
    assert bool(seen) == (name not in AVERAGED_AS_PARAMETERS | TWO_NUMBERS_A_COLUMN)
    torch.testing.assert_close(together.workers.params, apart.workers.params, rtol=0, atol=1e-13)
    for entry, tensor in apart.workers.memory.items():
        torch.testing.assert_close(together.workers.memory[entry], tensor, rtol=0, atol=1e-13)
    assert together.workers.bytes == apart.workers.bytes


def test_what_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "at_once", lambda columns: True)
    rows = torch.zeros(2, 1 << 20)
    many = [Span(place, place + 10) for place in range(0, 100, 20)]
    assert joined.are_narrow(Slices(rows, many))
    assert not joined.are_narrow(Slices(rows, many[:4]))
    assert not joined.are_narrow(Slices(rows, [*many[:4], Span(100, 1 << 20)]))
