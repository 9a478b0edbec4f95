"""What a plan says of ranks is what a simulation does."""

import pytest
import torch
from torch import nn

from partavg import Participation, Schedule, Simulation
from partavg.backends.processes import dealt_evenly
from partavg.core.participation import Redistribution
from partavg.core.workers import arrived
from partavg.cost import Network, Workload, cost
from partavg.cost.dealt import Dealt
from partavg.cost.setting import Setting
from partavg.solvers import SOLVERS

WORKERS, CLIENTS, SHARED, LOCAL = 6, 30, 21, 8


@pytest.mark.parametrize("workers", range(2, 20))
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_rows_are_those_of_a_simulation(workers: int, ranks: int) -> None:
    if ranks <= workers:
        dealt = Dealt(workers, ranks)
        held = dealt_evenly(workers, ranks)
        assert list(dealt.rows) == [share.stop - share.start for share in held]
        assert dealt.idle == pytest.approx(1 - workers / (ranks * max(dealt.rows)))


def simulation(solver: str, delay: int, redistribution: Redistribution) -> Simulation:
    """A network with 21 parameters that are shared, and 8 that are not, on one rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 2))
    x, y = torch.randn(60, 6), torch.randint(0, 2, (60,))
    return Simulation(
        model,
        nn.functional.cross_entropy,
        (x, y),
        list(torch.arange(60).view(CLIENTS, 2)),
        schedule=Schedule(4, 2),
        solver=SOLVERS[solver](),
        local=["1.*"],
        participation=Participation(CLIENTS, WORKERS, 4, redistribution),
        delay=delay,
        lr=0.1,
        batch=2,
        engine="looped",
        partition="blocks",
    )


@pytest.mark.parametrize("solver", ["sgd", "scaffold", "adam", "fedprox"])
@pytest.mark.parametrize("delay", [0, 1])
def test_memory_is_that_of_live_tensors(solver: str, delay: int) -> None:
    made = simulation(solver, delay, "permute")
    for _ in made.train(10 if delay else 9):
        pass
    held = [made.workers.params, made.workers.params, *made.workers.memory.values()]  # gradients
    if delay:
        (message,) = made.workers.pending.values()
        held += [*message["sent"], arrived(message)]
    plan = cost(Workload(SHARED, 1.0), Network(2, 1e9), made.schedule, delay)
    setting = Setting(SOLVERS[solver]())
    found = Dealt(2 * WORKERS, 2, 2 * CLIENTS).memory(setting, SHARED, LOCAL, plan)
    exact = sum(tensor.nbytes for tensor in held)
    assert found == pytest.approx(exact, rel=0.05 if delay else 0)  # parts are not quite equal


@pytest.mark.parametrize("solver", ["sgd", "scaffold", "adam"])
def test_the_bank_is_that_of_all_clients(solver: str) -> None:
    made = simulation(solver, 0, "permute")
    rows = [kept.first.nbytes for name, kept in made.workers.bank.items() if name != "local_taken"]
    found = Dealt(2 * WORKERS, 2, 2 * CLIENTS).bank(Setting(SOLVERS[solver]()), SHARED, LOCAL)
    assert found == CLIENTS * sum(rows)
