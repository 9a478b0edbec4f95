"""All solvers through the same suite: a new entry of SOLVERS is tested without a new test.

One of them is not in the package.
"""

import pickle

import pytest
import torch
from tests.outside import FedDyn
from tests.problems import LAYOUT, Quadratic, plan, quadratic_batches, start
from tests.strategies import rows
from torch import nn
from torch.nn import functional as F

from partavg.backends.simulate import Simulation
from partavg.core.abilities import abilities
from partavg.core.cuts import PARTITIONS
from partavg.core.loop import Batch, train
from partavg.core.pace import Fixed
from partavg.core.participation import Participation
from partavg.core.plan import Plan
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver, Step
from partavg.data.split import dirichlet
from partavg.solvers import SOLVERS

ALL = {**SOLVERS, "feddyn": FedDyn}
D = LAYOUT.size
SCHEDULES = [Schedule.periodic(4), Schedule.partial(4), Schedule(4, 2), Schedule.synchronous()]


def trained(solver: Solver, schedule: Schedule, steps: int = 13, **plans) -> torch.Tensor:
    """Rows after some steps on quadratics."""
    who = plans.get("participation")
    workers = start(solver, schedule.parts, rows(1, D, 0).repeat(who.active if who else 4, 1))
    made = plan(schedule, who.clients if who else 4, plans.pop("maker", "channel"))
    made = Plan(schedule, made.partition, made.buffer_parts, made.weights, **plans)
    every = quadratic_batches(len(made.weights), D)

    def batches(step: int) -> Batch:
        active = torch.tensor(who(step)) if who else slice(None)
        return Batch(*(tensor[active] for tensor in every(step)))

    if who and who.moves:
        names = tuple(f"memory.{name}" for name in abilities(solver).per_client)
        workers.keep(who.clients, names, torch.device("cpu"))
    for _ in train(
        workers, Quadratic(), batches, plan=made, solver=solver, lr=lambda k: 0.1 / k**0.5,
        until=steps,
    ):  # fmt: skip
        pass
    return workers.params


@pytest.mark.parametrize("name", sorted(ALL))
def test_any_block_of_rows_and_columns_gives_what_the_whole_gives(name: str) -> None:
    solver = ALL[name]()
    assert isinstance(solver, Solver)
    assert hash(solver) == hash(ALL[name]())
    assert pickle.loads(pickle.dumps(solver)) == solver
    whole, grads = rows(4, D, 0), rows(4, D, 1)
    pieces = whole.clone()
    state = solver.init(whole, LAYOUT)
    taken = torch.arange(1, 5, dtype=torch.float64)[:, None]
    tensors = abilities(solver).whole_tensors
    solver.step_(whole, grads.clone(), state, Step(0.1, taken, LAYOUT if tensors else None))
    middle = LAYOUT.starts[2] if tensors else 9
    for r in (slice(0, 1), slice(1, 4)):
        for c in (slice(0, middle), slice(middle, D)):
            fresh = solver.init(rows(4, D, 0), LAYOUT)
            memory = {k: (v[r] if len(v) == 4 else v)[:, c] for k, v in fresh.items()}
            seen = LAYOUT.between(c.start, c.stop) if tensors else None
            solver.step_(pieces[r, c], grads[r, c].clone(), memory, Step(0.1, taken[r], seen))
    assert torch.equal(whole, pieces)


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("maker", sorted(PARTITIONS))
def test_every_solver_under_every_schedule_and_partition(
    name: str, schedule: Schedule, maker: str
) -> None:
    """Finite, and after a full averaging all workers agree."""
    by_layer = maker in ("layer", "sequential", "strided") and schedule.parts > 3
    if schedule.parts > 1 and (maker == "whole" or by_layer):
        return
    solver = ALL[name]()
    steps = 12 if schedule.parts == 1 else 13
    params = trained(solver, schedule, steps, maker=maker)
    assert params.isfinite().all()
    spread = (params - params.mean(0)).abs().max()
    assert (spread < 1e-9) == (schedule.parts == 1)


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_permuting_the_workers_permutes_the_rows(name: str, schedule: Schedule) -> None:
    solver, order = ALL[name](), torch.tensor([2, 0, 3, 1])
    made = plan(schedule, 4)
    results = []
    for permuted in (False, True):
        workers = start(solver, schedule.parts, rows(1, D, 0).repeat(4, 1))
        every = quadratic_batches(4, D)

        def batches(step: int, permuted: bool = permuted, every=every) -> Batch:
            return Batch(*(t[order] if permuted else t for t in every(step)))

        for _ in train(
            workers, Quadratic(), batches, plan=made, solver=solver, lr=lambda k: 0.1, until=10
        ):
            pass
        results.append(workers.params)
    torch.testing.assert_close(results[0][order], results[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_equal_data_is_one_worker_alone(name: str, schedule: Schedule) -> None:
    solver = ALL[name]()
    one = quadratic_batches(1, D)
    results = []
    for count in (1, 4):
        workers = start(solver, schedule.parts, rows(1, D, 0).repeat(count, 1))

        def batches(step: int, count: int = count) -> Batch:
            inputs, targets, keys = one(step)
            return Batch(
                inputs.repeat(count, 1, 1), targets.repeat(count, 1, 1), keys.repeat(count)
            )

        for _ in train(
            workers, Quadratic(), batches, plan=plan(schedule, count), solver=solver,
            lr=lambda k: 0.1, until=10,
        ):  # fmt: skip
            pass
        results.append(workers.params)
    torch.testing.assert_close(results[0].repeat(4, 1), results[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("redistribution", ["permute", "average"])
@pytest.mark.parametrize("schedule", SCHEDULES[:3])
@pytest.mark.parametrize("active", [2, 6])
def test_every_solver_with_partial_participation(
    name: str, redistribution: str, schedule: Schedule, active: int
) -> None:
    who = Participation(6, active, 4, redistribution)
    assert trained(ALL[name](), schedule, participation=who).isfinite().all()


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("schedule", SCHEDULES[:3])
def test_every_solver_with_workers_of_different_speed(name: str, schedule: Schedule) -> None:
    pace = Fixed(4, (1, 4, 2, 3), clients=4)
    params = trained(ALL[name](), schedule, pace=pace)
    assert params.isfinite().all()
    even = trained(ALL[name](), schedule, pace=Fixed(4, (4,), clients=4))
    assert torch.equal(even, trained(ALL[name](), schedule)), "the same steps for all"


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("schedule", SCHEDULES[:3])
def test_every_solver_with_delay(name: str, schedule: Schedule) -> None:
    assert trained(ALL[name](), schedule, delay=2).isfinite().all()


@pytest.mark.parametrize("name", sorted(ALL))
def test_engines_agree_with_every_solver(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 5, generator=generator).double()
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    ends = []
    pace = None if abilities(ALL[name]()).needs_equal_steps else Fixed(3, (3, 2), 5)
    for engine in ("looped", "vmapped"):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
        )
        simulation = Simulation(
            model.double(), F.cross_entropy, (x, y), dirichlet(y, 5, 0, minimum=4),
            schedule=Schedule.partial(3), solver=ALL[name](), lr=0.05, batch=4, engine=engine,
            participation=Participation(5, 3, 6), pace=pace,
        )  # fmt: skip
        for _ in simulation.train(14):
            pass
        ends.append(simulation.workers)
    for field in ("params", "buffers"):
        torch.testing.assert_close(
            getattr(ends[0], field), getattr(ends[1], field), rtol=1e-8, atol=1e-10
        )
    for key, tensor in ends[0].memory.items():
        torch.testing.assert_close(tensor, ends[1].memory[key], rtol=1e-7, atol=1e-9)
