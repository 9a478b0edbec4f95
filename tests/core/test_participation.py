"""Who is active, what becomes of the models, and what it costs."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.problems import LAYOUT, Quadratic, plan, quadratic_batches, start
from torch import Tensor

from partavg.core import rolling, settle
from partavg.core.abilities import Abilities
from partavg.core.loop import Batch, Gradients, train
from partavg.core.participation import Participation
from partavg.core.plan import Plan
from partavg.core.reduce import Reduce, alone
from partavg.core.rolling import rolled
from partavg.core.schedule import Schedule
from partavg.core.seeds import fold
from partavg.core.settle import redistribute_
from partavg.core.solver import Solver, State, Sync
from partavg.core.workers import Workers
from partavg.solvers.outer import Outer
from partavg.solvers.sgd import SGD

CLIENTS, STEPS, LR, MOMENTUM = 6, 25, 0.1, 0.9


def planned(schedule: Schedule, who: Participation, weights: Tensor | None = None) -> Plan:
    whole = plan(schedule, who.clients, "contiguous", weights)
    return Plan(schedule, whole.partition, whole.buffer_parts, whole.weights, who)


def trained(schedule: Schedule, who: Participation, weights: Tensor | None = None) -> Workers:
    """Train quadratics that belong to clients."""
    solver = SGD(momentum=MOMENTUM)
    every = quadratic_batches(who.clients, LAYOUT.size)

    def batches(step: int) -> Batch:
        active = torch.tensor(who(step))
        return Batch(*(tensor[active] for tensor in every(step)))

    workers = start(solver, schedule.parts, torch.ones(who.active, LAYOUT.size).double())
    if who.redistribution == "none" and who.moves:
        workers.keep(who.clients, workers.row_names, torch.device("cpu"))
    records = train(
        workers, Quadratic(), batches, plan=planned(schedule, who, weights), solver=solver,
        lr=lambda step: LR, until=STEPS,
    )  # fmt: skip
    for _ in records:
        pass
    return workers


def in_turn(who: Participation, step: int) -> list[int]:
    """The slots that change hands before a step, by counting."""
    gap = who.interval if who.rolling else who.every
    if not who.every or step == 1 or (step - 1) % gap:
        return []
    turns = who.every // gap
    turn = ((step - 1) // gap - 1) % turns
    return [slot for slot in range(who.active) if ((slot + 1) * turns - 1) // who.active == turn]


def textbook(schedule: Schedule, who: Participation, weights: Tensor) -> Tensor:
    """The same with a list of models and plain loops."""
    columns = [
        torch.cat([torch.arange(a, b) for a, b in spans])
        for spans in planned(schedule, who).partition.parts
    ]
    every = quadratic_batches(who.clients, LAYOUT.size)
    fresh = torch.ones(LAYOUT.size).double(), torch.zeros(LAYOUT.size).double()
    home = dict.fromkeys(range(who.clients), fresh)
    slots = [fresh for _ in range(who.active)]

    def average(part: Tensor, clients: list[int]) -> None:
        shares = weights[clients] / weights[clients].sum()
        mean = sum(p * x[part] for p, (x, _) in zip(shares, slots, strict=True))
        for x, _ in slots:
            x[part] = mean

    clients: list[int] = []
    heard = torch.ones(LAYOUT.size).double()
    for step in range(1, STEPS + 1):
        now = who(step).tolist()
        if clients and who.changes(step):
            if who.redistribution == "average":
                for part in columns:
                    average(part, clients)
            if who.redistribution == "listen":
                for slot in in_turn(who, step):
                    slots[slot] = heard.clone(), slots[slot][1]
            if who.redistribution == "none":
                home |= dict(zip(clients, slots, strict=True))
                slots = [home[client] for client in now]
        clients = now
        inputs, targets, _ = every(step)
        for slot, client in enumerate(clients):
            x, v = slots[slot]
            v = MOMENTUM * v + inputs[client, 0] * (x - targets[client, 0])
            slots[slot] = x - LR * v, v
        for part in schedule(step):
            before = [(x.clone(), v) for x, v in slots]
            average(columns[part], clients)
            if who.redistribution == "listen":
                heard[columns[part]] = slots[0][0][columns[part]]
                for slot in in_turn(who, step + 1 + -step % schedule.interval):
                    slots[slot] = before[slot]
    return torch.stack([x for x, _ in slots])


@pytest.mark.parametrize("active", [2, 5, 6])
@pytest.mark.parametrize("redistribution", ["permute", "average", "none"])
@pytest.mark.parametrize("schedule", [Schedule(5, 1), Schedule(5, 5), Schedule(6, 2)])
@pytest.mark.parametrize("every", [0, 4, 5, 10])
def test_training_is_the_textbooks(
    schedule: Schedule, redistribution: str, active: int, every: int
) -> None:
    who = Participation(CLIENTS, active, every, redistribution, seed=3)
    weights = torch.arange(1, CLIENTS + 1).double() / 21
    expected = textbook(schedule, who, weights)
    torch.testing.assert_close(
        trained(schedule, who, weights).params, expected, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("active", [1, 2, 5])
@pytest.mark.parametrize("schedule", [Schedule(5, 1), Schedule(5, 5), Schedule(6, 2)])
@pytest.mark.parametrize("cycles", [1, 2, 3])
def test_who_comes_next_listens(
    schedule: Schedule, active: int, cycles: int, in_turns: bool
) -> None:
    interval = schedule.interval
    who = Participation(CLIENTS, active, cycles * interval, "listen", 3, interval, in_turns)
    weights = torch.arange(1, CLIENTS + 1).double() / 21
    expected = textbook(schedule, who, weights)
    found = trained(schedule, who, weights)
    torch.testing.assert_close(found.params, expected, rtol=1e-12, atol=1e-12)
    stays = replace(who, every=0, redistribution="permute", rolling=False)
    assert found.bytes == trained(schedule, stays, weights).bytes, "nothing more is sent"


@pytest.mark.parametrize("cycles", [0, 1, 2])
def test_where_all_are_active_nobody_comes_and_nobody_listens(cycles: int) -> None:
    schedule = Schedule(5, 5)
    who = Participation(CLIENTS, CLIENTS, cycles * 5, "listen", 3, 5)
    weights = torch.arange(1, CLIENTS + 1).double() / 21
    stays = Participation(CLIENTS, CLIENTS)
    for one in (who, replace(who, rolling=True)) if cycles else (who,):
        found, expected = trained(schedule, one, weights), trained(schedule, stays, weights)
        assert torch.equal(found.params, expected.params)


@pytest.mark.parametrize("active", [1, 2, 5, 6])
@pytest.mark.parametrize("redistribution", ["permute", "none"])
@pytest.mark.parametrize("schedule", [Schedule(5, 1), Schedule(4, 4), Schedule(6, 2)])
@pytest.mark.parametrize("cycles", [1, 2, 3])
def test_slots_that_change_hands_in_turn_are_the_textbooks(
    schedule: Schedule, redistribution: str, active: int, cycles: int
) -> None:
    interval = schedule.interval
    who = Participation(CLIENTS, active, cycles * interval, redistribution, 3, interval, True)
    weights = torch.arange(1, CLIENTS + 1).double() / 21
    found, expected = trained(schedule, who, weights), textbook(schedule, who, weights)
    torch.testing.assert_close(found.params, expected, rtol=1e-12, atol=1e-12)
    for step in range(1, STEPS + 1):
        slots = range(active)[who.changing(step)]
        assert list(slots) == (in_turn(who, step) if active < CLIENTS else [])
        assert who.changes(step) == bool(slots)


@pytest.mark.parametrize("redistribution", ["permute", "listen", "none"])
@pytest.mark.parametrize("schedule", [Schedule(5, 1), Schedule(5, 5)])
def test_with_one_turn_all_change_hands_as_ever(schedule: Schedule, redistribution: str) -> None:
    who = Participation(CLIENTS, 3, 5, redistribution, interval=5)
    one, other = (trained(schedule, w) for w in (who, replace(who, rolling=True)))
    assert torch.equal(one.params, other.params)
    assert (one.bytes, one.messages) == (other.bytes, other.messages)


@pytest.mark.parametrize("redistribution", ["permute", "average"])
@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(5, 1),
        Schedule(4, 4, shuffle=3),
        Schedule(6, 2, multiples=(1, 2)),
        Schedule(4, offsets=(1, 3, 0)),
    ],
)
@pytest.mark.parametrize("every", [1, 3, 4])
def test_what_was_averaged_after_a_step_is_known_without_asking_workers(
    schedule: Schedule, redistribution: str, every: int
) -> None:
    seen = []

    def both(workers: Workers, plan: Plan, reduce: Reduce) -> Collection[int]:
        told = settle._just_averaged(workers, reduce)
        seen.append(told)
        with patch.object(settle, "_just_averaged", side_effect=AssertionError("was asked")):
            assert sorted(known(workers, plan, reduce)) == told
        return told

    known = settle._averaged_after_step
    with patch.object(settle, "_averaged_after_step", both):
        trained(schedule, Participation(CLIENTS, 3, every, redistribution))
    assert len(seen) == (STEPS - 1) // every
    assert any(seen)


@given(
    st.integers(1, 30), st.integers(1, 5), st.integers(1, 12), st.integers(0, 5), st.data()
)  # fmt: skip
def test_rolling_draws(
    clients: int, interval: int, cycles: int, seed: int, data: st.DataObject
) -> None:
    active = data.draw(st.integers(1, clients))
    redistribution = data.draw(st.sampled_from(["permute", "listen", "none"]))
    who = Participation(
        clients, active, cycles * interval, redistribution, seed, interval, rolling=True
    )
    drawn = [who(step) for step in range(1, 3 * who.every + 2)]
    rolled.cache_clear()
    for step in sorted(range(1, len(drawn)), key=lambda step: fold(seed, step)):
        assert np.array_equal(who(step), drawn[step - 1]), "whatever is asked for first"
        assert len(set(drawn[step].tolist())) == active
        assert set(drawn[step].tolist()) <= set(range(clients))
        stay = np.ones(active, bool)
        stay[who.changing(step + 1)] = False
        assert np.array_equal(drawn[step][stay], drawn[step - 1][stay])
    for begin in range(1, 2 * who.every if active < clients else 0, interval):
        slots = [range(active)[who.changing(s)] for s in range(begin + 1, begin + who.every + 1)]
        assert sorted(slot for some in slots for slot in some) == list(range(active)), "all, once"


def test_every_client_has_its_turn_equally_often_where_draws_are_rolling() -> None:
    who = Participation(clients=20, active=6, every=4, rolling=True)
    turns = np.bincount(np.concatenate([who(step) for step in range(1, 8001)]), minlength=20)
    assert abs(turns - 2400).max() < 4 * (2000 * 0.3 * 0.7) ** 0.5 * 4
    coming = [who(step + 1)[who.changing(step + 1)] for step in range(1, 8001)]
    counts = np.bincount(np.concatenate(coming), minlength=20)
    assert abs(counts - 600).max() < 4 * (12000 * 0.05 * 0.95) ** 0.5


def test_a_long_run_keeps_few_draws_and_goes_through_each_once() -> None:
    who = Participation(clients=50, active=10, every=30, interval=10, seed=7, rolling=True)
    with patch.object(rolling, "fold", wraps=fold) as made:
        last = who(50_000)
        for step in range(50_000, 50_100):
            who(step)
        assert made.call_count < 5_000 + 20
    assert len(set(last.tolist())) == 10
    assert rolled.cache_info().currsize <= 64


class HalfWay(SGD):
    """Goes half of the way to the mean."""

    abilities = Abilities(keeps_apart=True)

    def decode_(self, rows: Tensor, total: Tensor, state: State, sync: Sync) -> None:
        rows.lerp_(total.expand_as(rows), 0.5)


@pytest.mark.parametrize(
    ("solver", "mix"), [(Outer(), 0.5), (Outer(SGD()), 0.3), (HalfWay(), None), (SGD(0.9), 0.4)]
)
@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("every", [4, 5])
def test_workers_that_are_kept_apart_are_the_same_when_clients_take_the_average(
    solver: Solver, mix: float | None, delay: int, every: int
) -> None:
    schedule, who = Schedule(4, 2), Participation(CLIENTS, 3, every, "average")
    made = planned(schedule, who)
    made = replace(made, delay=delay, mix=mix)
    workers = start(solver, 2, torch.ones(3, LAYOUT.size, dtype=torch.float64))
    all_batches = quadratic_batches(CLIENTS, LAYOUT.size)

    def batches(step: int) -> Batch:
        return Batch(*(tensor[torch.tensor(who(step))] for tensor in all_batches(step)))

    for _ in train(
        workers, Quadratic(), batches, plan=made, solver=solver, lr=lambda k: 0.1, until=every
    ):
        pass
    mean, sent, late = made.weights_at(every) @ workers.params, workers.bytes, bool(workers.pending)
    assert workers.params.std(0).max() > 1e-3
    redistribute_(workers, made, solver, alone, who)
    assert workers.params.std(0).max() < 1e-12
    assert workers.bytes == sent + LAYOUT.size * 8, "all of the model, once"
    if not late:
        torch.testing.assert_close(workers.params[0], mean)


@given(st.integers(1, 40), st.integers(0, 7), st.integers(0, 5), st.data())
def test_draws(clients: int, every: int, seed: int, data: st.DataObject) -> None:
    active = data.draw(st.integers(1, clients))
    who = Participation(clients, active, every, seed=seed)
    for step in range(1, 30):
        drawn = who(step)
        assert len(set(drawn.tolist())) == active
        assert set(drawn.tolist()) <= set(range(clients))
        if step > 1 and not who.changes(step):
            assert np.array_equal(drawn, who(step - 1))
    changes = [k for k in range(1, 30) if who.changes(k)]
    assert changes == (list(range(every + 1, 30, every)) if every else [])


def test_every_client_has_its_turn_equally_often() -> None:
    who = Participation(clients=20, active=5, every=1)
    turns = np.bincount(np.concatenate([who(step) for step in range(1, 2001)]), minlength=20)
    assert abs(turns - 500).max() < 4 * (2000 * 0.25 * 0.75) ** 0.5


def test_when_all_are_active_models_move_only_by_permutation() -> None:
    assert sorted(Participation(8, 8, 5)(6)) == list(range(8))
    assert Participation(8, 8, 5)(6).tolist() != list(range(8))
    for who in (Participation(8, 8, 5, "average"), Participation(8, 8, 5, "none")):
        assert who(6).tolist() == list(range(8))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((8, 0), "0 of 8 clients cannot be active: use 1 to 8"),
        ((8, 9), "9 of 8 clients cannot be active"),
        ((8, 4, -1), "a draw every -1 steps makes no sense"),
        (
            (8, 4, 10, "average", 0, 5, True),
            "rolling draws .* 'average' .*: use permute, listen or",
        ),
        ((8, 4, 0, "permute", 0, 5, True), "rolling draws need steps .*: give every"),
        ((8, 4, 9, "permute", 0, 5, True), "whole cycles, and a draw every 9 steps .* example 10"),
        ((8, 4, 2, "listen", 0, 5), "every 2 steps is no multiple of the interval 5: .* example 5"),
        (
            (8, 4, 1, "swap"),
            "redistribution 'swap' is not known: use permute, average, listen, none",
        ),
    ],
)
def test_impossible_participation_is_refused(arguments: tuple, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Participation(*arguments)


class Idle:
    """An engine that computes nothing: traffic does not depend on it."""

    def __call__(self, params: Tensor, buffers: Tensor, batch: Batch) -> Iterator[Gradients]:
        yield Gradients(slice(0, len(params)), torch.zeros(len(params)), [])


def spent(schedule: Schedule, who: Participation, steps: int) -> tuple[float, int]:
    """Models and messages sent per worker."""
    workers = start(SGD(), schedule.parts, torch.zeros(who.active, LAYOUT.size).double())
    if who.redistribution == "none" and who.moves:
        workers.keep(who.clients, workers.row_names, torch.device("cpu"))
    none = torch.zeros(who.active, 1)
    batch = Batch(none, none, torch.zeros(who.active, dtype=torch.long))
    for _ in train(
        workers, Idle(), lambda step: batch, plan=planned(schedule, who), solver=SGD(),
        lr=lambda step: LR, until=steps,
    ):  # fmt: skip
        pass
    return workers.bytes / (8 * LAYOUT.size), workers.messages


@pytest.mark.parametrize("redistribution", ["permute", "average"])
@pytest.mark.slow
def test_redistribution_pays_for_an_interval_ten_percent_longer(redistribution: str) -> None:
    """The paper's non-IID setting: both spend the same traffic, here in 10 rounds of 110 steps."""
    periodic, _ = spent(Schedule(10, 1), Participation(4, 2, 10, redistribution), 1100)
    partial, _ = spent(Schedule(11, 11), Participation(4, 2, 110, redistribution), 1100)
    assert periodic == 110, "an average that all get costs nothing again"
    assert partial == pytest.approx(periodic, rel=0.02)
    assert partial > 100 + 8, "the redistributions are counted"


@pytest.mark.parametrize(
    ("schedule", "every", "redistribution", "models", "messages"),
    [
        (Schedule(10, 1), 10, "permute", 2, 2),
        (Schedule(10, 1), 5, "permute", 2 + 2, 2 + 2),
        (Schedule(10, 1), 5, "average", 2 + 2, 2 + 2),
        (Schedule(10, 1), 5, "none", 2, 2),
        (Schedule(5, 5), 10, "permute", 4.8, 20 + 1),
        (Schedule(5, 5), 10, "average", 4.8, 20 + 1),
        (Schedule(5, 5), 0, "permute", 4, 20),
    ],
)
def test_what_was_just_averaged_is_not_sent_again(
    schedule: Schedule, every: int, redistribution: str, models: float, messages: int
) -> None:
    found = spent(schedule, Participation(4, 2, every, redistribution), 20)
    assert found == (pytest.approx(models, rel=0.02), messages)


@pytest.mark.parametrize(("redistribution", "handed"), [("permute", 0.8), ("listen", 0)])
@pytest.mark.parametrize("active", [2, 3, 7])
def test_only_the_models_of_those_who_come_move(
    active: int, redistribution: str, handed: float
) -> None:
    """In 6 cycles of 5 steps all slots change twice, whatever their number, but for one turn."""
    who = Participation(9, active, 15, redistribution, 0, 5, rolling=True)
    models, messages = spent(Schedule(5, 5), who, 31)
    assert models == pytest.approx(6.2 + 2 * handed, rel=0.02)
    assert messages == 31 + 2 * (handed > 0)


@pytest.mark.parametrize("shuffle", [None, 1])
def test_an_average_is_handed_over_whole_also_right_after_a_schedule_began(shuffle) -> None:
    """What was just averaged is told by the workers' clocks, not by a schedule to come."""
    schedule = Schedule(4, 4, shuffle=shuffle, start=8)
    who = Participation(4, 2, 8, "average")
    workers = start(SGD(), 4, torch.zeros(2, LAYOUT.size).double())
    workers.params[1] = 1.0
    workers.steps += 1
    workers.step = 8
    redistribute_(workers, planned(schedule, who), SGD(), alone, who)
    assert (workers.params == 0.5).all()
    assert workers.bytes == 8 * LAYOUT.size
    redistribute_(workers, planned(schedule, who), SGD(), alone, who)
    assert workers.bytes == 8 * LAYOUT.size, "nothing changed since"
