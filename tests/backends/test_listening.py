"""Who comes next takes each average in place of who leaves, and nothing more is sent."""

import copy
from typing import Any

import pytest
import torch
from tests.backends.test_ranks import WORKERS, distance, simulation, story
from tests.outside import median
from torch import Tensor

from partavg.backends.simulate import Simulation
from partavg.core.abilities import abilities, step_weight
from partavg.core.adapt import PostLocal
from partavg.core.participation import Participation
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver, Step, Sync
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
        ways.append([told, made.workers.params, made.workers.memory, made.workers.state()["bank"]])
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


@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("solver", [FedProx(0.5), SCAFFOLD(), Outer()])
def test_who_leaves_knows_nothing_of_the_averages_of_the_last_cycle(
    solver: Solver, rolling: bool
) -> None:
    who = Participation(WORKERS, 3, 8, "listen", rolling=rolling)
    made = simulation(None, participation=who, solver=solver)
    names = shared_names(solver)
    last = 0 if rolling else 4
    list(made.train(last))
    known = {name: made.workers.memory[name].clone() for name in names}
    list(made.train(last + 4))
    stays = slice(1, 3) if rolling else slice(3, 3)
    for name in names:
        assert torch.equal(made.workers.behind[name], known[name]), "as those who leave know it"
        assert not torch.equal(made.workers.memory[name], known[name]), "as the others know it"
    (part,) = made.schedule(last + 4)
    spans = made.partition.parts[part]
    rows = torch.cat([made.workers.params[:, a:b] for a, b in spans], 1)
    heard = made.workers.heard[part]["params"]
    assert torch.equal(rows[stays], heard.expand_as(rows)[stays]), "who stays has it"
    assert (rows[0] - heard).abs().max() > 1e-4, "who leaves has not"
    list(made.train(last + 5))
    assert len(made.workers.heard) == rolling, "another leaves in this cycle"
    assert made.workers.steps[0].max() == 1
    assert made.workers.steps[1:].max() == (3 if rolling else 1)


@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("solver", [FedProx(0.5, SGD(0.9)), SCAFFOLD(SGD(0.9)), Outer()])
def test_training_is_that_of_a_list_of_workers_of_one_row(solver: Solver, rolling: bool) -> None:
    """Each slot has a memory of its own, also of what all have in common: a slow twin."""
    who = Participation(WORKERS, 3, 8, "listen", interval=4, rolling=rolling)
    made = simulation(None, participation=who, solver=solver, buffers="local")
    twin = Slots(made, who, solver)
    for step in range(1, 27):
        twin.step_(step)
        list(made.train(step))
        torch.testing.assert_close(made.workers.params, twin.rows(), rtol=0, atol=1e-11)


class Slots:
    """Slots with a list of everything; what leaving clients do not get, they do not get."""

    def __init__(self, made: Simulation, who: Participation, solver: Solver) -> None:
        self.made, self.who, self.solver = made, who, solver
        self.layout = made.workers.layout
        self.models = [made.workers.params[:1].clone() for _ in range(who.active)]
        self.buffers = [made.workers.buffers[:1].clone() for _ in range(who.active)]
        self.memory = [solver.init(row, self.layout) for row in self.models]
        own = abilities(solver).per_client
        start = {name: self.memory[0][name].clone() for name in own}
        self.home = [{k: v.clone() for k, v in start.items()} for _ in range(who.clients)]
        self.heard = self.models[0].clone()
        self.known = {k: v.clone() for k, v in self.memory[0].items() if k in shared_names(solver)}
        parts = len(made.partition.parts)
        self.steps = [torch.zeros(1, parts).double() for _ in range(who.active)]
        self.lr_sum = [torch.zeros(1, parts).double() for _ in range(who.active)]
        self.averaged = [0] * parts
        self.taken = torch.zeros(1, 1).double()

    def rows(self) -> Tensor:
        return torch.cat(self.models)

    def step_(self, step: int) -> None:
        weigh, lr = step_weight(self.solver), 0.1 / step**0.5
        self._hand_over_(step)
        batch = self.made._batch(step)
        self.taken += 1
        for slot in range(self.who.active):
            grads = torch.zeros_like(self.models[slot])
            one = batch.some(slice(slot, slot + 1))
            for found in self.made._engine(self.models[slot], self.buffers[slot], one):
                for columns, values in found.pieces:
                    grads[:, columns] = values
            now = Step(lr, self.taken, None)
            self.solver.step_(self.models[slot], grads, self.memory[slot], now)
            self.steps[slot] += 1
            weight = weigh(self.steps[slot], self.taken) if weigh else 1
            self.lr_sum[slot] += lr * weight
        for part in self.made.schedule(step):
            self._average_(part, range(self.who.active)[self.who.leaving(step)])

    def _hand_over_(self, step: int) -> None:
        if step == 1:
            return
        before, now = self.who(step - 1), self.who(step)
        for slot in range(self.who.active):
            own = {name: self.memory[slot][name].clone() for name in self.home[0]}
            self.home[before[slot]] = own
        for slot in range(self.who.active)[self.who.changing(step)]:
            self.models[slot].copy_(self.heard)
            for name, values in self.known.items():
                self.memory[slot][name].copy_(values)
            for name, values in self.home[now[slot]].items():
                self.memory[slot][name].copy_(values)
            self.steps[slot].zero_()
            self.lr_sum[slot].zero_()

    def _average_(self, part: int, leaving: range) -> None:
        clock, share = slice(part, part + 1), self.who.active / self.who.clients
        self.averaged[part] += 1
        for a, b in self.made.partition.parts[part]:
            syncs = [
                Sync(self.steps[s][:, clock], self.lr_sum[s][:, clock], self.taken, share,
                     outer_steps=self.averaged[part])
                for s in range(self.who.active)
            ]  # fmt: skip
            state = [{k: v[:, a:b] for k, v in memory.items()} for memory in self.memory]
            sent = [
                self.solver.encode(self.models[s][:, a:b], state[s], syncs[s])
                for s in range(self.who.active)
            ]
            total = torch.stack(sent).mean(0)[0]
            for s in range(self.who.active):
                row = self.models[s][:, a:b]
                before = row.clone(), {k: state[s][k].clone() for k in self.known}
                self.solver.decode_(row, total, state[s], syncs[s])
                self.heard[:, a:b] = row
                for name in self.known:
                    self.known[name][:, a:b] = state[s][name]
                if s in leaving:
                    row.copy_(before[0])
                    for name, values in before[1].items():
                        state[s][name].copy_(values)
        for s in range(self.who.active):
            self.steps[s][:, clock] = 0
            self.lr_sum[s][:, clock] = 0


@pytest.mark.parametrize("solver", ALL, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("rolling", [False, True])
def test_a_run_that_resumes_while_others_listen_is_the_run_without_a_stop(
    solver: Solver, rolling: bool
) -> None:
    who = Participation(WORKERS, 3, 8, "listen", rolling=rolling)
    whole = story(simulation(None, participation=who, solver=solver), 18)
    first = simulation(None, participation=who, solver=solver)
    for stop in (5, 6, 8, 9):
        list(first.train(stop))
        again = simulation(None, participation=who, solver=solver)
        again.load(copy.deepcopy(first.state()))
        assert distance(story(again, 18)["state"], whole["state"]) == 0, stop


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"delay": 1}, r"'listen' does not go with averaging.delay = 1: leave that out"),
        ({"mix": 0.5}, r"averaging.mix = 0.5"),
        ({"wire": "int8"}, r"averaging.wire = 'int8'"),
        ({"partition": "fresh"}, r"averaging.partition = 'fresh'"),
        ({"adapt": PostLocal(5)}, r"an interval that adapts"),
        ({"aggregate": median}, r"an aggregate other than the mean"),
        ({"solver": SOLVERS["vrl_sgd"]()}, r"solver VRLSGD remembers averages for each worker"),
        ({"solver": SGD(0.9, momentum_at_averaging="averaged")}, r"solver SGD remembers averages"),
        ({"schedule": Schedule.partial(3)}, r"every 4 steps is no multiple of the interval 3: use"),
    ],
)
def test_what_does_not_go_with_listening(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        simulation(None, participation=Participation(WORKERS, 3, 4, "listen"), **options)


@pytest.mark.parametrize("who", [Participation(WORKERS, 3, 0, "listen"),
                                 Participation(WORKERS, WORKERS, 4, "listen")])  # fmt: skip
def test_nobody_listens_where_nobody_comes(who: Participation) -> None:
    stays = Participation(WORKERS, who.active)
    found, expected = (
        story(simulation(None, participation=one, solver=SCAFFOLD(SGD(0.9))), 14)
        for one in (who, stays)
    )
    del found["state"]["settings"], expected["state"]["settings"]
    assert distance(found, expected) == 0


def test_a_state_of_before_there_was_rolling_is_loaded() -> None:
    who = Participation(WORKERS, 3, 8)
    saved = simulation(None, participation=who).state()
    assert "rolling" not in saved["settings"]["participation"]
    simulation(None, participation=who).load(saved)
    rolling = Participation(WORKERS, 3, 8, rolling=True)
    with pytest.raises(ValueError, match=r"participation\.rolling"):
        simulation(None, participation=rolling).load(saved)


@pytest.mark.parametrize("redistribution", ["permute", "listen", "none"])
def test_rolling_does_not_go_with_an_interval_that_adapts(redistribution: str) -> None:
    who = Participation(WORKERS, 3, 8, redistribution, rolling=True)
    with pytest.raises(ValueError, match="does not go with an interval that adapts"):
        simulation(None, participation=who, adapt=PostLocal(5))
