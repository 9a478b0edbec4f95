"""What becomes of messages is one function, the same on every backend."""

import pytest
import torch
from tests.outside import FedDyn, Noisy, median, plain_sum
from tests.problems import LAYOUT
from tests.solvers.setting import M, made, run
from tests.solvers.setting import same as assert_same
from tests.strategies import rows
from torch import Tensor

from partavg import SGD, About, Outer, Participation, Schedule
from partavg.backends.combinations import check_aggregate
from partavg.core import Workers, weighted_sum
from partavg.core.exchange import average_
from partavg.core.reduce import alone
from partavg.solvers import SOLVERS

SCHEDULES = [Schedule.periodic(4), Schedule.partial(4), Schedule(6, 2)]


@pytest.mark.parametrize("name", [*SOLVERS, "feddyn"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("more", [{}, {"delay": 2}, {"who": True}])
def test_the_sum_written_as_a_function_is_the_default(
    name: str, schedule: Schedule, more: dict
) -> None:
    solver = {**SOLVERS, "feddyn": FedDyn}[name]()
    plans = {"delay": more.get("delay", 0)}
    if "who" in more:
        plans["participation"] = Participation(M, 3, 4, "average")
    one = run(solver, schedule, **plans)
    other = run(solver, schedule, aggregate=plain_sum, **plans)
    assert_same(one, other, 1e-10)
    for entry, tensor in one.memory.items():
        torch.testing.assert_close(tensor, other.memory[entry], rtol=1e-9, atol=1e-10)
    assert one.bytes == other.bytes


def averaged(aggregate, solver=None, schedule: Schedule | None = None) -> tuple[Workers, Tensor]:
    """Four workers, each elsewhere, before and after part 1 is averaged."""
    plan = made(schedule or Schedule.partial(4), aggregate=aggregate, seed=5)
    params = rows(M, LAYOUT.size, 3)
    before = params.clone()
    chosen = solver or SGD()
    workers = Workers.start(params, params[:, :0], LAYOUT, chosen, plan.schedule.parts)
    workers.common = before.mean(0)
    workers.step = 7
    average_(workers, 1, plan, chosen, alone)
    return workers, before


def columns(workers: Workers, part: int = 1, parts: int = 4) -> Tensor:
    spans = made(Schedule(parts, parts)).partition.parts[part]
    return torch.cat([torch.arange(a, b) for a, b in spans])


def test_it_sees_whole_messages_of_all_workers() -> None:
    workers, before = averaged(median)
    mine = columns(workers)
    expected = before.clone()
    expected[:, mine] = before[:, mine].median(0).values
    assert torch.equal(workers.params, expected)
    assert workers.common is not None
    assert torch.equal(workers.common[mine], expected[0, mine])


def test_it_knows_the_last_common_value_and_where_parameters_lie() -> None:
    seen: list[tuple[Tensor, About]] = []

    def look(messages: Tensor, weights: Tensor, about: About) -> Tensor:
        seen.append((messages, about))
        return weights @ messages

    for solver in (SGD(), SOLVERS["scaffold"](), SOLVERS["fednova"]()):
        workers, before = averaged(look, solver)
        messages, about = seen.pop()
        mine = columns(workers)
        assert (about.part, about.step) == (1, 7)
        assert torch.equal(about.last, before.mean(0)[mine])
        if about.places:
            assert torch.equal(about.parameters(messages), before[:, mine])
    assert about.places == (), "fednova sends directions"


def test_randomness_comes_from_a_seed_of_its_own_for_each_part_and_step() -> None:
    one, two = (run(SGD(), Schedule.partial(4), aggregate=Noisy(), seed=s) for s in (0, 0))
    assert torch.equal(one.params, two.params)
    other = run(SGD(), Schedule.partial(4), aggregate=Noisy(), seed=1)
    assert not torch.equal(one.params, other.params)
    seeds: list[int] = []

    def look(messages: Tensor, weights: Tensor, about: About) -> Tensor:
        seeds.append(about.seed)
        return weights @ messages

    run(SGD(), Schedule.partial(4), aggregate=look)
    assert len(set(seeds)) == len(seeds)


def short(messages: Tensor, weights: Tensor, about: About) -> Tensor:
    return (weights @ messages)[:-1]


def rounded(messages: Tensor, weights: Tensor, about: About) -> Tensor:
    return (weights @ messages).half()


@pytest.mark.parametrize(
    ("aggregate", "problem"),
    [
        (short, r"made torch.float64 \[\d+\] on cpu of messages that are torch.float64 \[\d+\]"),
        (rounded, "made torch.float16"),
        (lambda messages, weights, about: messages, "it must be one of these"),
        (lambda messages, weights, about: None, "made NoneType"),
    ],
)
def test_what_is_no_message_is_refused(aggregate, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        averaged(aggregate)


def test_its_arguments_may_have_other_names() -> None:
    averaged(lambda sent, shares, info: shares @ sent)


@pytest.mark.parametrize("aggregate", ["median", Noisy, lambda messages: messages.mean(0)])
def test_what_is_no_function_of_messages_is_said(aggregate) -> None:
    with pytest.raises(ValueError, match="is no function of messages, weights and what"):
        check_aggregate(aggregate, SGD())


def test_what_it_needs_is_said() -> None:
    with pytest.deprecated_call():
        apart = Outer(keep=0.5)
    with pytest.raises(ValueError, match="Outer keeps workers apart, and an aggregate must"):
        check_aggregate(median, apart)
    check_aggregate(weighted_sum, apart)
    check_aggregate(median, Outer())
    with pytest.raises(ValueError, match=r"made torch.float64 \[1, \d+\]"):
        averaged(lambda messages, weights, about: messages[:1])
    with pytest.raises(ValueError, match="does not send its parameters"):
        averaged(Noisy(), SOLVERS["fednova"]())
    plan = made(Schedule.partial(4), aggregate=median)
    params = rows(M, LAYOUT.size, 3)
    workers = Workers.start(params, params[:, :0], LAYOUT, SGD(), 4)
    with pytest.raises(ValueError, match="must know the start"):
        average_(workers, 1, plan, SGD(), alone)
