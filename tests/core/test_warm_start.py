"""Post-local training with an outer optimizer: it begins when local steps do."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from partavg.backends.simulate import Simulation
from partavg.core.adapt import PostLocal
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import Outer
from partavg.solvers.sgd import SGD

UNTIL, END = 6, 18


def simulation(solver: Solver, until: int | None, schedule: Schedule) -> Simulation:
    torch.manual_seed(0)
    x = torch.randn(60, 5).double()
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    return Simulation(
        model, F.cross_entropy, (x, y), [range(20), range(20, 40), range(40, 60)], lr=0.1, batch=4,
        engine="looped",
        schedule=schedule, solver=solver, adapt=None if until is None else PostLocal(until),
    )  # fmt: skip


def trained(made: Simulation, until: int = END) -> Simulation:
    for _ in made.train(until):
        pass
    return made


@pytest.mark.parametrize("base", [SGD(0.9), FedProx(0.1)])
@pytest.mark.parametrize("schedule", [Schedule.periodic(4), Schedule.partial(4)])
def test_outer_momentum_begins_with_the_interval(base: Solver, schedule: Schedule) -> None:
    solver = Outer(SGD(0.9, nesterov=True), 0.7, base=base)
    warm = trained(simulation(solver, UNTIL, schedule), UNTIL)
    synchronous = trained(simulation(base, None, Schedule.synchronous()), UNTIL)
    assert torch.equal(warm.workers.params, synchronous.workers.params)
    assert not warm.workers.outer_steps
    assert torch.equal(warm.workers.memory["anchor"], warm.workers.params[:1])
    assert not warm.workers.memory["outer.momentum"].any()
    saved = copy.deepcopy(trained(warm, UNTIL - 2 + 4).state())
    again = simulation(solver, UNTIL, schedule)
    again.load(saved)
    assert torch.equal(trained(warm).workers.params, trained(again).workers.params)
    assert warm.workers.memory["outer.momentum"].any()
    assert max(warm.workers.outer_steps) == (END - UNTIL) // 4


def test_a_warm_start_of_no_steps_is_none() -> None:
    solver = Outer(SGD(0.9), 0.7)
    one, other = (trained(simulation(solver, until, Schedule.periodic(4))) for until in (0, None))
    assert torch.equal(one.workers.params, other.workers.params)
