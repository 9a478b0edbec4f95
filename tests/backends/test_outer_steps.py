"""Outer steps are counted per part, and states of 0.2, which counted per column, go on."""

from typing import Any

import pytest
import torch
from tests.backends.test_ranks import simulation

from partavg import Schedule
from partavg.core.adapt import AdaComm
from partavg.core.workers import OLD_COUNT
from partavg.solvers.adam import Adam
from partavg.solvers.outer import Outer

SOLVER = Outer(Adam(0.9, 0.99, 1e-3), 0.02)


def as_saved_by_02(state: dict[str, Any], parts: Any, size: int) -> dict[str, Any]:
    """The same state with a count in every column, of averages that have arrived."""
    counts = torch.zeros(1, size, dtype=torch.float64)
    for part, (spans, steps) in enumerate(zip(parts, state["outer_steps"], strict=True)):
        for start, stop in spans:
            counts[:, start:stop] = steps - (part in state["pending"])
    pending = {
        k: {**message, "sync": message["sync"][:5]} for k, message in state["pending"].items()
    }
    old = {**state, "memory": {**state["memory"], OLD_COUNT: counts}, "pending": pending}
    del old["outer_steps"]
    return old


@pytest.mark.parametrize("delay", [0, 2])
def test_a_state_of_02_goes_on(delay: int) -> None:
    options = {"solver": SOLVER, "delay": delay, "schedule": Schedule(3, 3)}
    made = simulation(None, **options)
    for _ in made.train(5):
        pass
    state = made.state()
    assert state["outer_steps"] == [1, 2, 2]
    assert not any("count" in name for name in state["memory"])
    saved = as_saved_by_02(state, made.partition.parts, made.workers.params.shape[1])
    other = simulation(None, **options)
    other.load(saved)
    for _ in made.train(9):
        pass
    for _ in other.train(9):
        pass
    assert torch.equal(made.workers.params, other.workers.params)
    assert other.workers.outer_steps == made.workers.outer_steps == [3, 3, 3]


def test_other_parts_count_on() -> None:
    made = simulation(None, solver=SOLVER, adapt=AdaComm(2), lr=0.1, schedule=Schedule(2, 2))
    for _ in made.train(6):
        pass
    assert made.workers.outer_steps == [6]  # 1 of each, 1 more where the cut changes, 4 of all
