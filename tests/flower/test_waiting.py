"""Nodes that say nothing, come late or are slow cost nobody else's time."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from tests.flower.faults import fault
from tests.flower.federation import SOLVERS, federation, server
from tests.flower.grid import FakeGrid
from tests.flower.test_faults import QUICK, turn

from partavg.flower import rounds, welcome

CHANGES = {**QUICK, **SOLVERS["sgd with momentum"]}


class Deaf(FakeGrid):
    """A grid with a node that is listed and never answers anything."""

    def _deliver(self, message: Message) -> None:
        if message.metadata.dst_node_id != 300:
            super()._deliver(message)


@fault("Nodes", "a connected node never says who it is")
def test_a_stranger_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    grid = federation(tmp_path, {**CHANGES, "training.steps": 6, "flower.min_clients": 3})
    deaf = Deaf(grid._app, {}, {})
    deaf.contexts = {**grid.contexts, 300: grid.contexts[102]}
    asked: list[int] = []
    push = FakeGrid.push_messages

    def pushed(self: FakeGrid, messages: Any) -> Any:
        asked.extend(m.metadata.dst_node_id for m in messages)
        return push(self, messages)

    monkeypatch.setattr(FakeGrid, "push_messages", pushed)
    rows = list(server(deaf))
    assert all(row["clients"] == [0, 1, 2] for row in rows)
    assert asked.count(300) == 1
    return "it is asked once while the others train, then seldom; no exchange waits for it"


def test_who_cannot_join_is_asked_later_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(welcome, "monotonic", lambda: now)
    grid = federation(tmp_path, CHANGES)
    run = server(grid)
    desk, roster = run.server._rounds._welcome, run.server.roster
    grid._app = lambda message, context: 1 / 0  # type: ignore[assignment, return-value]
    times = []
    for _ in range(20_000):
        before = len(grid.log)
        desk.look(roster)
        if any(m.metadata.dst_node_id == 100 for _, m, _ in grid.log[before:]):
            times.append(now)
        while desk.waits:
            desk.look(roster)
        now += 10.0
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps[:8] == [30, 60, 120, 240, 480, 960, 1920, 3600]
    assert set(gaps[8:]) == {3600}


@fault("Nodes", "a client joins while the others train")
def test_a_client_that_comes_later(tmp_path: Path) -> str:
    grid = federation(tmp_path, {**CHANGES, "training.steps": 8})
    grid.gone = {102}
    rows = []
    for row in server(grid):
        rows.append(row)
        grid.gone = {102} if row["step"] < 3 else set()
    joined = [2 in row["clients"] for row in rows]
    assert joined[:3] == [False] * 3
    assert joined[5:] == [True] * 4, "taken up once it has said who it is"
    assert rows[2]["away"] == {"2": "it never joined"}
    return "it introduces itself meanwhile, and takes part from the next exchange on"


@fault("Nodes", "a client misses every deadline")
def test_a_slow_node_costs_ever_fewer_deadlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Exchanges take a second, or the deadline of 10 s if client 0 is asked."""
    now = 0.0
    monkeypatch.setattr(rounds, "monotonic", lambda: now)
    grid = federation(
        tmp_path,
        {**CHANGES, "training.steps": 120, "averaging.parts": 2, "flower.deadline": 10.0,
         "metrics.evaluate_every": 0},
    )  # fmt: skip
    asked = []

    def fault_of(client: int, message: Message) -> str | None:
        nonlocal now
        if client or not turn(message):
            return None
        asked.append(now)
        now += 10.0
        return "late"

    grid.fault = fault_of
    for row in server(grid):
        now += 1.0
        assert row["clients"] == [1, 2]
    waits = [round(b - a - 10) for a, b in pairwise(asked)]
    assert waits[0] == 1, "once is forgiven"
    assert [wait // 10 for wait in waits[1:3]] == [1, 2]
    assert len(asked) <= 5
    return (
        "each time it is asked costs one deadline; after two in a row it is left out for one "
        "deadline, then twice as long each time (flower.rest at most)"
    )
