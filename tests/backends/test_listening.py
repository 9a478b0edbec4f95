"""Who comes next takes each average in place of who leaves, and nothing more is sent."""

from typing import Any

import pytest
import torch
from tests.backends.test_ranks import WORKERS, distance, simulation, story
from tests.outside import median

from partavg.core.abilities import step_weight
from partavg.core.adapt import PostLocal
from partavg.core.participation import Participation
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.trial import shared_names
from partavg.solvers import SOLVERS
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import Outer
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD

ALL: list[Solver] = [
    SGD(0.9), SOLVERS["adam"](), FedProx(0.5, SGD(0.9)), SCAFFOLD(SGD(0.9)), Outer(),
    SOLVERS["fednova"](),
]  # fmt: skip


@pytest.mark.parametrize("solver", ALL, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("more", [{}, {"local": ["3.*"]}, {"buffers": "local"}])
def test_with_one_part_that_changes_hands_after_every_averaging_it_is_the_average(
    solver: Solver, more: dict[str, Any]
) -> None:
    ways = []
    for redistribution in ("average", "listen"):
        who = Participation(WORKERS, 3, 4, redistribution)
        made = simulation(
            None, schedule=Schedule.periodic(4), participation=who, solver=solver, **more
        )
        told = [
            [*record.losses.tolist(), record.bytes, record.messages] for record in made.train(17)
        ]
        ways.append([told, made.workers.params, made.workers.memory, made.workers.bank])
    assert distance(*ways) == 0


@pytest.mark.parametrize("solver", ALL, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("buffers", ["part", "every"])
def test_newcomers_begin_with_each_part_as_it_was_last_averaged(
    solver: Solver, buffers: str
) -> None:
    who = Participation(WORKERS, 3, 8, "listen")
    made = simulation(None, participation=who, solver=solver, buffers=buffers)
    plain = isinstance(solver, SGD)
    means: dict[int, torch.Tensor] = {}
    for record in made.train(8):
        if record.step > 4:
            assert made.discrepancy().total > 0
            for part in record.due if plain else ():
                means[part] = made.workers.params.mean(0)
    sent = made.workers.bytes
    heard = made.workers.heard
    next(iter(made.train(9)))
    assert len(heard) == 4
    assert not made.workers.heard
    count, rates = made.workers.steps, made.workers.lr_sum
    assert count.max() == 1, "newcomers took no step yet, whatever those before them did"
    if step_weight(solver) is None:
        torch.testing.assert_close(rates, count * 0.1 / 9**0.5)
    for part, spans in enumerate(made.partition.parts):
        for start, _ in spans if plain else ():
            flat = torch.cat([torch.arange(a, b) for a, b in spans])
            known = heard[part]["params"][flat == start]
            torch.testing.assert_close(known, means[part][start : start + 1])
    assert made.workers.bytes - sent > 0, "only what step 9 averages"
    still = simulation(None, participation=Participation(WORKERS, 3), solver=solver,
                       buffers=buffers)  # fmt: skip
    list(still.train(9))
    assert made.workers.bytes == still.workers.bytes


@pytest.mark.parametrize("solver", [FedProx(0.5), SCAFFOLD(), Outer()])
def test_who_leaves_knows_nothing_of_the_averages_of_the_last_cycle(solver: Solver) -> None:
    made = simulation(None, participation=Participation(WORKERS, 3, 8, "listen"), solver=solver)
    names = shared_names(solver)
    list(made.train(4))
    known = {name: made.workers.memory[name].clone() for name in names}
    list(made.train(8))
    for name in names:
        assert torch.equal(made.workers.memory[name], known[name]), "those who leave"
    heard = made.workers.heard
    list(made.train(9))
    averaged = made.schedule(9)
    for part, spans in enumerate(made.partition.parts):
        if part not in averaged:
            for name in names:
                new = torch.cat([made.workers.memory[name][0, a:b] for a, b in spans])
                assert torch.equal(new, heard[part][f"memory.{name}"]), "those who come"
                old = torch.cat([known[name][0, a:b] for a, b in spans])
                assert not torch.equal(new, old)


@pytest.mark.parametrize("solver", ALL, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("stop", [5, 6, 8, 9])
def test_a_run_that_resumes_while_others_listen_is_the_run_without_a_stop(
    solver: Solver, stop: int
) -> None:
    who = Participation(WORKERS, 3, 8, "listen")
    whole = story(simulation(None, participation=who, solver=solver), 18)
    first = simulation(None, participation=who, solver=solver)
    list(first.train(stop))
    again = simulation(None, participation=who, solver=solver)
    again.load(first.state())
    assert distance(story(again, 18)["state"], whole["state"]) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"delay": 1}, r"'listen' does not go with averaging.delay = 1: leave that out"),
        ({"mix": 0.5}, r"averaging.mix = 0.5"),
        ({"wire": "int8"}, r"averaging.wire = 'int8'"),
        ({"partition": "fresh"}, r"averaging.partition = 'fresh'"),
        ({"adapt": PostLocal(5)}, r"an interval that adapts"),
        ({"aggregate": median}, r"an aggregate of your own"),
        ({"solver": SOLVERS["vrl_sgd"]()}, r"solver VRLSGD remembers averages for each worker"),
        ({"solver": SGD(0.9, momentum_at_averaging="averaged")}, r"solver SGD remembers averages"),
        ({"schedule": Schedule.partial(3)}, r"every 4 steps is no multiple of the interval 3: use"),
    ],
)
def test_what_does_not_go_with_listening(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        simulation(None, participation=Participation(WORKERS, 3, 4, "listen"), **options)


def test_nobody_listens_where_nobody_comes() -> None:
    with pytest.raises(ValueError, match="every 0 steps is no multiple"):
        Participation(WORKERS, 3, 0, "listen")
