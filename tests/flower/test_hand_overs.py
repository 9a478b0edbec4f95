"""Hand-overs when clients are away, lose what they have, or the server dies."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.flower.federation import BASE, assert_equal, federation, server
from tests.flower.grid import FakeGrid
from tests.flower.test_faults import QUICK, turn

from partavg import build
from partavg.core.participation import Participation
from partavg.flower.messages import ORDER
from partavg.flower.settings import Settings

LISTENING: dict[str, Any] = {
    **QUICK,
    "participation.fraction": 0.67,
    "participation.every": 8,
    "participation.redistribution": "listen",
    "averaging.parts": 2,
    "training.steps": 26,
    "flower.min_clients": 1,
}
WAYS = {
    "listen": LISTENING,
    "listen, in turn": {**LISTENING, "participation.rolling": True},
    "permute, in turn": {
        **LISTENING, "participation.redistribution": "permute", "participation.rolling": True
    },
}  # fmt: skip


def who_trains(changes: dict[str, Any]) -> Participation:
    who = build.participation(Settings.read({**BASE, **changes}).config)
    assert who is not None
    return who


def told(grid: FakeGrid, client: int) -> Iterator[dict[str, Any]]:
    """The orders that a client carried out, but for the last."""
    for asked, message, _ in grid.log:
        order = message.content[ORDER]
        if asked == client and order.get("send") in ("part", "nothing"):
            yield dict(order)


@pytest.mark.parametrize("catch_up", ["parts", "whole"])
@pytest.mark.parametrize("away", [1, 4, 5, 8, 11])
@pytest.mark.parametrize("how", [name for name in WAYS if name.startswith("listen")])
def test_whoever_is_away_when_others_come_is_whole_when_it_returns(
    tmp_path: Path, how: str, away: int, catch_up: str
) -> None:
    """A client is late for two turns: as a leaver, a newcomer or neither."""
    changes = {
        **WAYS[how], "solver.name": "scaffold", "flower.catch_up": catch_up, "flower.rest": 0.0,
    }  # fmt: skip
    grid, who = federation(tmp_path, changes), who_trains(changes)
    grid.fault = lambda client, message: (
        "late" if client == 0 and turn(message) in (away, away + 1) else None
    )
    run = server(grid)
    rows = list(run)
    assert run.server.mirror.params.isfinite().all()
    assert set(rows[-1]["clients"]) <= set(who(26).tolist())
    for client in range(3):
        known, last = 0, 0
        for order in told(grid, client):
            start = order["start"]
            comes = known == 0 or any(
                client in who(step + 1)[who.changing(step + 1)] for step in range(known, start + 1)
            )  # fmt: skip
            if comes and order["until"] > start:
                assert order["bring"] == "whole", "since it became active it had nothing else"
            if order["bring"] in ("sums", "noted"):
                assert order["after"] == last, "it took part in what these are of"
            assert order["bring"] != "model"
            known, last = order["until"], order["turn"]
        assert known, "it trained"


@pytest.mark.parametrize("how", [name for name in WAYS if name.startswith("listen")])
def test_who_loses_its_state_before_it_leaves_gets_the_servers_row(
    tmp_path: Path, how: str
) -> None:
    changes = WAYS[how]
    grid, who = federation(tmp_path, changes), who_trains(changes)
    first = next(step for step in range(1, 27) if who.leaving(step).stop > who.leaving(step).start)
    leaver = int(who(first)[who.leaving(first)][0])
    lost: list[int] = []

    def fault(client: int, message: Any) -> None:
        start = message.content[ORDER].get("start", 0)
        if client == leaver and start == first + 1 and not lost:
            lost.append(turn(message))
            shutil.rmtree(tmp_path / f"node{leaver}")

    grid.fault = fault
    rows = list(server(grid))
    assert "does not have its state" in rows[lost[0] - 1]["away"][str(leaver)]
    after = [order for order in told(grid, leaver) if order["turn"] > lost[0]]
    assert after[0]["bring"] == "whole"


class Killed(BaseException):
    """The end of a server, in the middle of handing out its orders."""


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    "solver", [{"solver.momentum": 0.9}, {"solver.name": "scaffold", "solver.base.momentum": 0.5}]
)
def test_a_server_killed_at_any_turn_goes_on_to_the_bit(
    tmp_path: Path, how: str, solver: dict[str, Any]
) -> None:
    changes = {**WAYS[how], **solver}
    whole = server(federation(tmp_path / "whole", changes))
    rows = list(whole)
    stages = [row["stage"] for row in rows]
    assert stages.count("redistribution") >= 3
    grid, dead = federation(tmp_path / "killed", changes), set[int]()

    def fault(client: int, message: Any) -> None:
        number = turn(message)
        if number and number not in dead and any(
            turn(other) == number for _, other, _ in grid.log
        ):  # fmt: skip
            dead.add(number)
            raise Killed

    grid.fault, run, resume = fault, None, {}
    for _ in range(3 * len(rows)):
        try:
            run = server(grid, **resume)
            resume = {"flower.resume": True}
            list(run)
            break
        except Killed:
            pass
    assert run is not None
    assert len(dead) >= stages.count("exchange"), "it died in every exchange"
    assert_equal(run.model(), whole.model(), tolerance=0)
    kept = list(run.folder.rows())
    assert [(row["stage"], row["step"], row["clients"]) for row in kept] == [
        (row["stage"], row["step"], row["clients"]) for row in rows
    ]
    assert not any(row["away"] for row in kept)
