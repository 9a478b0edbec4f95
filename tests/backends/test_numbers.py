"""Numbers that must survive averaging: halves, whole numbers, variances that come late."""

from collections.abc import Callable

import pytest
import torch
from tests.outside import plain_sum
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import Participation, Schedule, Simulation
from partavg.core.pace import Fixed
from partavg.core.solver import Solver
from partavg.engines.model import RowModel
from partavg.solvers import SOLVERS
from partavg.solvers.sgd import SGD

HALVES = [torch.bfloat16, torch.float16]


class Counting(nn.Module):
    """A layer with whole numbers of all kinds; one of them counts by `by`."""

    def __init__(self, by: int = 1) -> None:
        super().__init__()
        self.linear, self.by = nn.Linear(6, 2), by
        self.register_buffer("hash", torch.tensor([16_000_001, 2**40 + 1, -(2**33) - 1]))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("count", torch.tensor(16_000_001))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + self.by
        return self.linear(x) * self.mask


def simulated(model: nn.Module, workers: int = 3, schedule: Schedule | None = None, **more):
    torch.manual_seed(0)
    x = torch.randn(60, 6)
    y = (x.sum(1) > 0).long()
    kind = next(model.parameters()).dtype
    return Simulation(
        model, F.cross_entropy, (x.to(kind), y),
        [torch.arange(i, 60, workers) for i in range(workers)],
        schedule=schedule or Schedule.partial(2), batch=4, **{"lr": 0.1, **more},
    )  # fmt: skip


def train(simulation: Simulation, steps: int) -> Simulation:
    for _ in simulation.train(steps):
        pass
    return simulation


# bfloat16 and float16


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("m", [3, 5, 7])
@pytest.mark.parametrize("name", ["sgd", "scaffold", "vrl_sgd", "fedprox"])
def test_equal_workers_stay_equal_and_where_they_are(dtype: torch.dtype, m: int, name: str) -> None:
    """At a rate of 0 nothing may move, however often all is averaged."""
    torch.manual_seed(1)
    model = nn.Linear(6, 2).to(dtype)
    simulation = simulated(model, m, lr=0.0, solver=SOLVERS[name]())
    before = simulation.workers.params.clone()
    train(simulation, 20)
    assert torch.equal(simulation.workers.params, before)
    assert torch.equal(simulation.consensus().weight, model.weight)
    assert simulation.discrepancy().total < 1e-12


@pytest.mark.parametrize("more", [{}, {"aggregate": plain_sum}], ids=["sums", "collected"])
def test_300_averagings_in_halves_end_where_float32_does(more: dict) -> None:
    norms = {}
    for dtype in (torch.float32, *HALVES):
        torch.manual_seed(1)
        simulation = simulated(nn.Linear(6, 2).to(dtype), 3, Schedule.synchronous(), **more)
        train(simulation, 300)
        assert simulation.workers.params.dtype == dtype
        assert simulation.workers.bytes == 300 * 14 * dtype.itemsize, "messages in the model's type"
        norms[dtype] = float(simulation.workers.params.float().norm())
    for dtype in HALVES:
        assert norms[dtype] == pytest.approx(norms[torch.float32], rel=0.02)


def test_weights_by_samples_and_of_those_active_are_not_rounded_to_halves() -> None:
    simulation = simulated(nn.Linear(6, 2).bfloat16(), 7, weights="samples")
    assert simulation._weights.dtype == torch.float32
    assert float(simulation._weights.sum()) == pytest.approx(1, abs=1e-6)
    who = Participation(7, 3, every=2, redistribution="average")
    simulation = train(simulated(nn.Linear(6, 2).bfloat16(), 7, participation=who), 5)
    assert float(simulation._weights.sum()) == pytest.approx(1, abs=1e-6)
    losses = torch.ones(3, dtype=torch.bfloat16)
    assert float(simulation.mean_loss(losses)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", sorted(SOLVERS))
@pytest.mark.parametrize("delay", [0, 1])
def test_every_solver_trains_halves(name: str, delay: int) -> None:
    simulation = train(
        simulated(nn.Linear(6, 2).bfloat16(), delay=delay, solver=SOLVERS[name](), lr=0.01), 8
    )
    assert simulation.workers.params.dtype == torch.bfloat16
    assert simulation.workers.params.isfinite().all()


@pytest.mark.parametrize("engine", ["looped", "vmapped"])
def test_batches_are_counted_beyond_what_a_half_can_hold(engine: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2)).bfloat16()
    simulation = train(simulated(model, engine=engine, schedule=Schedule(50)), 300)
    assert int(simulation.consensus()[1].num_batches_tracked) == 300
    assert simulation.consensus()[1].running_var.dtype == torch.bfloat16


# Whole numbers


@pytest.mark.parametrize("engine", ["looped", "vmapped"])
@pytest.mark.parametrize("m", [3, 7])
@pytest.mark.parametrize("make", [Counting, lambda: Counting().bfloat16()])
@pytest.mark.parametrize("delay", [0, 1])
def test_whole_numbers_are_exact(
    engine: str, m: int, make: Callable[[], nn.Module], delay: int
) -> None:
    simulation = simulated(make(), m, engine=engine, delay=delay)
    for steps in (7, 12):
        train(simulation, steps)
        for module in (simulation.consensus(), simulation.worker(1)):
            assert module.hash.tolist() == [16_000_001, 2**40 + 1, -(2**33) - 1]
            assert module.mask.tolist() == [True, False]
            assert int(module.count) == 16_000_001 + steps


def test_workers_of_different_speed_count_the_mean_of_their_steps() -> None:
    simulation = simulated(Counting(), 2, Schedule(4), pace=Fixed(4, (2, 4), 2))
    assert int(train(simulation, 4).worker(0).count) == 16_000_001 + 3


def test_what_counts_beyond_what_is_exact_is_refused() -> None:
    simulation = simulated(Counting(by=2**20), engine="looped")
    train(simulation, 3).consensus()
    train(simulation, 4)
    sentence = "buffer 'count' has changed by 4,194,304 or more"
    with pytest.raises(ValueError, match=sentence):
        simulation.consensus()
    with pytest.raises(ValueError, match=sentence):
        simulation.worker(0)
    with pytest.raises(ValueError, match=sentence):
        simulation.evaluate_workers((torch.randn(4, 6), torch.zeros(4).long()))
    train(simulated(Counting(by=2**20).double(), engine="looped"), 4).consensus()


def test_columns_that_count() -> None:
    model = RowModel(Counting(), F.cross_entropy, torch.device("cpu"))
    assert model.counters == (0, 1, 2, 3, 4, 5)
    assert model.whole_numbers().tolist() == [16_000_001, 2**40 + 1, -(2**33) - 1, 1, 0, 16_000_001]
    assert RowModel(nn.Linear(2, 2), F.mse_loss, torch.device("cpu")).whole_numbers().shape == (0,)


# Late averages


@pytest.mark.parametrize("solver", [SGD(0.9), SOLVERS["scaffold"]()])
def test_late_averages_do_not_make_variances_negative(solver: Solver) -> None:
    """Variances that fall fast: with what they fell by since, averages would be below 0."""

    class Falling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 2)
            self.register_buffer("variance", torch.tensor(1.0))

        def forward(self, x: Tensor) -> Tensor:
            self.variance = self.variance * (0.1 if x[0, 0] > 0 else 0.9)
            return self.linear(x)

    simulation = simulated(
        Falling(), 4, Schedule.periodic(4), delay=3, engine="looped", solver=solver
    )
    sent: Tensor | None = None
    for record in simulation.train(20):
        variances = simulation.workers.buffers
        assert (variances > 0).all(), record.step
        if record.step % 4 == 3 and sent is not None:
            torch.testing.assert_close(variances, sent.expand(4, 1))
        if record.due:
            sent = variances.mean(0)


@pytest.mark.parametrize("redistribution", ["permute", "average", "none"])
def test_averages_that_are_late_when_clients_change(redistribution: str) -> None:
    who = Participation(6, 3, every=4, redistribution=redistribution)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    simulation = simulated(model, 6, Schedule.partial(3), delay=2, participation=who)
    for _ in simulation.train(17):
        module = simulation.consensus()
        assert (module[1].running_var > 0).all()
        assert (simulation.workers.buffers[:, 4:8] > 0).all()
