"""Averages taken over by Streaming DiLoCo's formula: x ← (1 − α) u + α (x now)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from partavg.backends.combinations import check_fresh, check_needs
from partavg.core.adapt import FedLAMA
from partavg.core.aggregate import weighted_sum
from partavg.core.arrival import arrive_
from partavg.core.cuts import whole
from partavg.core.exchange import average_
from partavg.core.layout import Layout
from partavg.core.plan import Plan
from partavg.core.reduce import alone
from partavg.core.schedule import Schedule
from partavg.core.settle import common_model, settle_
from partavg.core.solver import Solver
from partavg.core.workers import Workers
from partavg.solvers.outer import Outer
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD

LAYOUT = Layout(("x",), ((1,),))
OUTER = Outer(SGD(), 1.0)


def two(solver: Solver, mix: float | None, delay: int = 2) -> tuple[Workers, Plan]:
    """Both workers begin at 0."""
    start = torch.zeros(2, 1, dtype=torch.float64)
    workers = Workers.start(start, start[:, :0].clone(), LAYOUT, solver, 1)
    weights = torch.full((2,), 0.5, dtype=torch.float64)
    plan = Plan(Schedule(4), whole(LAYOUT, 1), ((),), weights, delay=delay, mix=mix)
    return workers, plan


def moved_(workers: Workers, *to: float) -> None:
    workers.params.copy_(torch.tensor(to, dtype=torch.float64)[:, None])
    workers.step += 1
    workers.steps += 1


@pytest.mark.parametrize("solver", [OUTER, SGD()])
@pytest.mark.parametrize(
    ("mix", "expected"), [(None, [-6.0, -8.0]), (0.0, [-2.0, -2.0]), (0.5, [-4.0, -5.0])]
)
def test_what_was_done_meanwhile_is_kept_as_far_as_alpha_goes(
    solver: Solver, mix: float | None, expected: list[float]
) -> None:
    workers, plan = two(solver, mix)
    moved_(workers, -2, -2)
    average_(workers, 0, plan, solver, alone, delay=2)
    moved_(workers, -4, -5)
    moved_(workers, -6, -8)
    arrive_(workers, plan, solver)
    assert workers.params.flatten().tolist() == expected


def test_without_delay_it_is_what_a_worker_has_of_its_own() -> None:
    workers, plan = two(SGD(), 0.25, delay=0)
    moved_(workers, 0, 8)
    average_(workers, 0, plan, SGD(), alone)
    assert workers.params.flatten().tolist() == [3.0, 5.0]
    settle_(workers, plan, SGD(), plainly=True)
    assert workers.params.flatten().tolist() == [4.0, 4.0], "though it was just averaged"


def test_an_aggregate_knows_what_workers_had_in_common() -> None:
    workers, plan = two(SGD(), 0.25, delay=0)
    workers.remember_start_()
    seen = []

    def aggregate(messages: Tensor, weights: Tensor, about: object) -> Tensor:
        seen.append(about.last.tolist())
        return weighted_sum(messages, weights, about)

    plan = replace(plan, aggregate=aggregate)
    for _ in range(2):
        moved_(workers, 0, 8)
        average_(workers, 0, plan, SGD(), alone)
    assert seen == [[0.0], [4.0]]
    params, _ = common_model(workers, plan)
    assert params.tolist() == [4.0]


@pytest.mark.parametrize("mix", [-0.1, 1.0, float("nan")])
def test_a_share_is_below_1(mix: float) -> None:
    with pytest.raises(ValueError, match=r"mix .* is (outside \[0, 1\)|not finite)"):
        two(SGD(), mix)


def test_solvers_that_must_begin_at_the_average_are_refused() -> None:
    for mix, delay in ((0.5, 0), (0.0, 2)):
        with pytest.raises(ValueError, match="SCAFFOLD compares models with the last average"):
            check_needs(SCAFFOLD(), mix=mix, delay=delay)
    check_needs(SCAFFOLD(), mix=0.0)
    check_needs(OUTER, mix=0.5, delay=2)


def test_what_fresh_columns_do_not_go_with_is_said() -> None:
    partial = Schedule.partial(4)
    with pytest.raises(ValueError, match="SCAFFOLD counts the steps since a part was averaged"):
        check_fresh("fresh", SCAFFOLD(), partial, 0, None)
    with pytest.raises(ValueError, match="adapt FedLAMA measures parts"):
        check_fresh("fresh", SGD(), partial, 0, FedLAMA())
    with pytest.raises(ValueError, match=r"delay 1 lets a column be drawn again .* after 1 steps"):
        check_fresh("fresh", SGD(), partial, 1, None)
    check_fresh("fresh", OUTER, Schedule(4, 2), 1, None)
    check_fresh("channel", SCAFFOLD(), partial, 1, None)
