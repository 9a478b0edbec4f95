"""The first answers of an exchange: nobody waits for the others, and nothing of theirs is lost."""

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from flwr.app import Message
from tests.flower.faults import fault
from tests.flower.federation import assert_equal, federation, server
from tests.flower.grid import FakeGrid
from tests.flower.test_faults import original, turn, unheard_at

from partavg.flower.messages import ORDER, PART, size
from partavg.flower.rounds import Round
from partavg.flower.rules import Rules
from partavg.flower.settings import Settings

FIRST = {"flower.first": 2, "solver.momentum": 0.9}


class Slow(FakeGrid):
    """A grid whose nodes answer when the test lets them; they carry out orders at once."""

    def __init__(self, other: FakeGrid) -> None:
        super().__init__(other._app, {}, {})
        self.contexts = other.contexts
        self.held: dict[int, str] = {}
        """Clients, and the turn whose answer is held back."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        here = [n for n in message_ids if n in self._replies and not self._holds(self._replies[n])]
        return [self._replies.pop(number) for number in here]

    def _holds(self, reply: Message) -> bool:
        client = self.client(reply.metadata.src_node_id)
        return self.held.get(client) == reply.metadata.group_id


def orders_of(grid: FakeGrid, client: int) -> list[tuple[int, str]]:
    """What a client was told, turn by turn."""
    return [(turn(m), m.content[ORDER]["bring"]) for c, m, _ in grid.log if c == client and turn(m)]


@fault("Nodes", "a client is slow, and flower.first = 2")
def test_an_exchange_ends_when_enough_have_answered(tmp_path: Path) -> str:
    """Held back from turn 3 to 5: the mean is that of the others, then it comes back as it is."""
    grid = Slow(federation(tmp_path, FIRST))
    run = server(grid)
    rows, means = [], {}
    grid.held = {0: "3"}
    for row in run:
        rows.append(row)
        means[row["step"]] = run.server.progress.sums
        grid.held = {0: "3"} if row["step"] < 5 else {}
    late = {row["step"]: row["late"] for row in rows if "late" in row}
    assert {step: who for step, who in late.items() if 0 in who}.keys() >= {3, 4, 5}
    assert not any(row["away"] for row in rows)
    sent = {
        c: torch.frombuffer(bytearray(r.content[PART][PART].data), dtype=torch.float64)
        for c, m, r in grid.log if turn(m) == 3
    }  # fmt: skip
    assert sorted(sent) == [0, 1, 2], "it did carry out the turn"
    torch.testing.assert_close(means[3], (sent[1] + sent[2]) / 2)
    told = dict(orders_of(grid, 0))
    assert 4 not in told
    assert 5 not in told
    back = min(t for t in told if t > 5)
    assert told[back] == "part", "what was averaged without it, in place of its own"
    assert rows[-1]["clients"] == [0, 1, 2], "the end waits for all"
    summary = run.folder.summary()["clients"]["0"]
    assert summary["late"] == sum(0 in who for who in late.values())
    assert summary["away"] == []
    return (
        "nobody waits for it; it is in `late`, gets no second order while it is busy, and comes "
        "back with what was averaged meanwhile"
    )


def test_a_late_client_is_one_that_was_late_by_its_deadline(tmp_path: Path) -> None:
    """Whether the server heard of a turn too late, or never: the same model in the end."""
    changes = {**FIRST, "flower.first": 3, "training.steps": 9}
    grid = Slow(federation(tmp_path / "late", changes))
    grid.held = {0: "3"}
    first = server(grid)
    for row in first:
        first.server._rules = replace(first.server._rules, first=2 if row["step"] == 2 else 3)
        if row["step"] == 3:
            assert row["late"] == [0]
            grid.held = {}
    other = federation(tmp_path / "expired", changes)
    unheard_at(3)(other)
    second = server(other)
    for _ in second:
        pass
    assert [bring for _, bring in orders_of(grid, 0)][3] == "part"
    assert_equal(first.model(), second.model(), tolerance=1e-12)


@pytest.mark.parametrize("solver", ["sgd", "scaffold"])
def test_whoever_is_slow_nothing_piles_up_and_every_byte_is_counted(
    tmp_path: Path, solver: str
) -> None:
    """Other clients are slow again and again: one order at a time, and all is heard in the end."""
    changes = {"flower.first": 0.5, "flower.min_clients": 1, "solver.name": solver,
               "training.steps": 24, "averaging.parts": 2, "averaging.interval": 4}  # fmt: skip
    grid = Slow(federation(tmp_path, changes))
    run, draw, before = server(grid), Random(1), threading.active_count()
    rows: list[dict[str, Any]] = []
    asked: Counter[int] = Counter()
    for row in run:
        rows.append(row)
        busy = run.server._rounds._busy()
        assert len(run.server._rounds._late) <= len(busy)
        asked = Counter(c for c, m, _ in grid.log if turn(m))
        turns = run.server.progress.turn
        assert max(asked.values()) <= turns
        held = draw.choice([None, 0, 1, 2]) if row["step"] < 22 else None
        grid.held = {} if held is None else {held: str(turns + 1)}
    assert run.server._rounds._busy() == set()
    assert grid._replies == {}, "nothing is left on the way"
    assert threading.active_count() <= before
    assert any("late" in row for row in rows)
    assert rows[-1]["clients"] == [0, 1, 2]
    for client, member in run.server.roster.items():
        told = [(m, r) for c, m, r in grid.log if c == client and turn(m)]
        assert member.received == sum(size(m) for m, _ in told)
        assert member.sent == sum(size(r) for _, r in told)
        assert member.messages == len(told)
        assert member.turn == run.server.progress.turn
    assert run.server.mirror.params.isfinite().all()


def test_a_server_that_resumes_has_forgotten_who_is_busy(tmp_path: Path) -> None:
    """What a client carried out unheard is no trap: it comes back by a part, or a whole model."""
    grid = Slow(federation(tmp_path, {**FIRST, "training.steps": 8}))
    grid.held = {0: "3"}
    rows = iter(server(grid))
    for row in rows:
        if row["step"] == 4:
            break
    rows.close()  # type: ignore[attr-defined]
    again = Slow(federation(tmp_path, {**FIRST, "training.steps": 8}))
    rest = list(server(again, **{"flower.resume": True, "flower.first": 3}))
    assert rest[0]["clients"] == [0, 1, 2]
    assert rest[-1]["clients"] == [0, 1, 2]


def test_a_late_answer_that_does_not_hold_is_dropped_too(tmp_path: Path) -> None:
    """It is not believed: what the server knows of that client stays as it was."""
    grid = Slow(federation(tmp_path, {**FIRST, "training.steps": 6}))
    grid.held = {0: "3"}

    def lies(client: int, reply: Message) -> Message:
        if client == 0 and reply.metadata.group_id == "3":
            return Message(type(reply.content)(), reply_to=original(reply))
        return reply

    grid.after = lies
    run = server(grid)
    for row in run:
        if row["step"] == 3:
            known = run.server.roster[0].turn
            grid.held = {}
            run.server._rounds._hear_late(Round())
            assert run.server.roster[0].turn == known == 2
    assert row["clients"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("first", "clients", "enough"),
    [(None, 3, 3), (2.0, 3, 2), (9.0, 3, 3), (0.5, 3, 2), (0.1, 9, 2)],
)
def test_how_many_are_enough(first: float | None, clients: int, enough: int) -> None:
    assert Rules(clients=9, min_clients=2, first=first).enough(clients) == enough


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"flower.first": 1}, r"flower.first = 1 is not between flower.min_clients = 2 and the 3"),
        ({"flower.first": 4}, r"flower.first = 4 is not between"),
        ({"flower.first": 2.5}, r"flower.first = 2.5 is no number of clients"),
        ({"flower.first": 0}, r"flower.first = 0: input should be greater than 0"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Settings.read({"training.workers": 3, "averaging.interval": 4, **changes})
