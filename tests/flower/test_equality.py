"""A federation of one-row clients is the simulator, number for number."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from tests.flower.federation import (
    BASE,
    PERIODIC,
    SOLVERS,
    assert_equal,
    federation,
    server,
    simulation,
)
from tests.outside import Noisy, median, plain_sum, registered

import partavg
from partavg import build
from partavg.flower.messages import PART, pack
from partavg.flower.settings import Settings
from partavg.solvers.adam import Adam
from partavg.solvers.outer import Outer


def corrected(*, lr: float = 0.05) -> partavg.Solver:
    """An outer optimizer that counts its steps."""
    return Outer(Adam(0.9, 0.99, 1e-3), lr)


def assert_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    with registered():
        partavg.register("solver", "corrected", corrected)
        run = server(federation(tmp_path, changes))
        for _ in run:
            pass
        assert_equal(run.model(), simulation(changes).consensus())


@pytest.mark.parametrize("scheme", ["periodic", "partial"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_federation_is_the_simulation(tmp_path: Path, solver: str, scheme: str) -> None:
    assert_the_same(tmp_path, SOLVERS[solver] | (PERIODIC if scheme == "periodic" else {}))


OTHERS: dict[str, dict[str, Any]] = {
    "weights by samples": {"averaging.weights": "samples", "solver.momentum": 0.9},
    "two local steps": {"averaging.parts": 2, "solver.momentum": 0.9},
    "statistics with every part": {"averaging.buffers": "every"},
    "steps left at the end": {"averaging.parts": 2, "training.steps": 11},
    "fednova": {"solver.name": "fednova", "solver.base.momentum": 0.9},
    "vrl_sgd": {"solver.name": "vrl_sgd"},
    "fedadam": {"solver.name": "fedadam", "solver.base.momentum": 0.9},
    "adamw": {"solver.name": "adamw"},
    "shuffled parts": {"averaging.shuffle": True, "training.steps": 16},
    "blocks": {"averaging.partition": "blocks"},
    "momentum and a rate that decays": {
        "solver.name": "scaffold",
        "solver.base.momentum": 0.9,
        "solver.base.nesterov": True,
        "lr_schedule.name": "step",
        "lr_schedule.at": "[3, 6]",
    },
    "a learning rate that decays": {"lr_schedule.name": "step", "lr_schedule.at": "[3, 6]"},
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_the_settings(tmp_path: Path, what: str) -> None:
    assert_the_same(tmp_path, {"training.steps": 8, **OTHERS[what]})


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("aggregate", [plain_sum, median, Noisy()])
def test_whatever_becomes_of_the_messages(tmp_path: Path, aggregate: Any, parts: int) -> None:
    changes = {"averaging.parts": parts, "averaging.buffers": "every"}
    if isinstance(aggregate, Noisy):
        changes["averaging.buffers"] = "local"  # it makes parameters of parameters
    run = server(federation(tmp_path, changes), aggregate)
    common = None
    for row in run:
        if row["stage"] == "exchange":
            common = run.server.mirror.params[0].clone()
    expected = simulation(changes, aggregate=aggregate)
    torch.testing.assert_close(common, expected.workers.common, rtol=0, atol=1e-9)
    ours, theirs = (dict(made.named_parameters()) for made in (run.model(), expected.consensus()))
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter, theirs[name], rtol=0, atol=1e-9)


def test_at_the_end_nobody_changes_a_part_that_was_just_averaged(tmp_path: Path) -> None:
    grid = federation(tmp_path, {})
    run = server(grid, median)

    def lies(client: int, reply: Message) -> Message:
        if client == 0 and run.server.progress.stage == "end":
            sent = reply.content[PART][PART]
            reply.content[PART] = pack(torch.full(sent.shape, 1e9, dtype=torch.float64))
        return reply

    grid.after = lies
    for row in run:
        if row["stage"] == "exchange":
            last = row["part"], run.server.mirror.params[0].clone()
    part, before = last
    after, parts = run.server.mirror.params[0], run.server._agreement.plan.partition.parts
    for a, b in parts[part]:
        assert torch.equal(after[a:b], before[a:b])
    assert after.abs().max() < 10


CHANGING = {
    "participation.fraction": 0.67,
    "participation.every": 6,
    "averaging.interval": 4,
    "averaging.parts": 2,
    "training.steps": 24,
    "averaging.buffers": "every",
}


IN_TURN = {**CHANGING, "participation.every": 8, "participation.rolling": True}
LISTENING = {**CHANGING, "participation.every": 4, "participation.redistribution": "listen"}
CHANGES = {
    "listen": LISTENING,
    "listen, after two cycles": {**LISTENING, "participation.every": 8},
    "listen, in turn": {**IN_TURN, "participation.redistribution": "listen"},
    "listen, periodic": {**LISTENING, "averaging.parts": 1},
    "listen, in turn, periodic": {
        **IN_TURN, "participation.redistribution": "listen", "averaging.parts": 1
    },
    "permute, in turn": IN_TURN,
    "permute, in turn, periodic": {**IN_TURN, "averaging.parts": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("how", "solver"),
    [
        *product(CHANGES, ["sgd", "scaffold"]),
        *product(
            ["listen, after two cycles", "listen, in turn, periodic", "permute, in turn"],
            ["fedprox", "fednova", "corrected"],
        ),
    ],
)
def test_clients_that_come_and_go(tmp_path: Path, how: str, solver: str) -> None:
    """Momentum stays with the client here and with the slot in the simulator: none, then."""
    buffers = "part" if solver == "fedprox" else "every"
    changes = {**CHANGES[how], "solver.name": solver, "averaging.buffers": buffers}
    for steps in (20, 22) if changes["averaging.parts"] > 1 else (20, 24):
        assert_the_same(tmp_path / str(steps), {**changes, "training.steps": steps})


@pytest.mark.parametrize("rolling", [False, True])
def test_where_all_are_active_nobody_listens(tmp_path: Path, rolling: bool) -> None:
    changes = {
        "participation.every": 4, "participation.redistribution": "listen",
        "participation.rolling": rolling, "solver.momentum": 0.9,
    }  # fmt: skip
    run = server(federation(tmp_path, changes))
    assert {row["stage"] for row in run} == {"exchange", "end"}
    assert_equal(run.model(), simulation({"solver.momentum": 0.9}).consensus())


@pytest.mark.parametrize("solver", ["sgd", "scaffold"])
@pytest.mark.parametrize("how", [name for name in CHANGES if name.startswith("listen")])
def test_no_model_goes_from_one_client_to_another(tmp_path: Path, how: str, solver: str) -> None:
    """Who comes gets the server's row, once; who leaves gets nothing in its last cycle."""
    changes = {**CHANGES[how], "solver.name": solver}
    grid = federation(tmp_path, changes)
    rows = list(server(grid))
    assert not any(row["away"] for row in rows)
    who = build.participation(Settings.read({**BASE, **changes}).config)
    assert who is not None
    came = 0
    for client, message, reply in grid.log:
        order = message.content["order"]
        if "bring" not in order:
            continue
        start, bring = order["start"], order["bring"]
        comes = start > 0 and order["until"] > start and client in who(start + 1)[
            who.changing(start + 1)
        ]  # fmt: skip
        leaves = start > 0 and client in who(start)[who.leaving(start)]
        if order["send"] == "model":
            assert order["until"] == changes["training.steps"], "only for u_K"
            continue
        came += comes
        assert bring == "whole" if comes or order["turn"] == 1 else bring != "model"
        assert not leaves or comes or bring in ("noted", "nothing")
        assert (PART in message.content) == (bring in ("sums", "part", "whole"))
        assert (PART in reply.content) == (order["send"] == "part")
    assert came >= 4
    talks = [row for row in rows if row["stage"] == "redistribution"]
    assert talks
    assert all(bool(row["clients"]) == (solver == "scaffold") for row in talks)


@pytest.mark.parametrize("solver", ["sgd", "scaffold", "vrl_sgd", "fednova", "feddyn", "corrected"])
@pytest.mark.parametrize("redistribution", ["permute", "average"])
def test_clients_that_take_turns(tmp_path: Path, redistribution: str, solver: str) -> None:
    """Momentum stays with the client here and with the model in the simulator: none, then."""
    changes = {"participation.redistribution": redistribution, "solver.name": solver}
    assert_the_same(tmp_path, {**CHANGING, "training.steps": 18, **changes})


def test_each_goes_on_with_its_own(tmp_path: Path) -> None:
    """Redistribution "none": who returns gets nothing but the parts averaged from then on."""
    grid = federation(tmp_path, {**CHANGING, "participation.redistribution": "none"})
    rows = list(server(grid))
    assert [row["stage"] for row in rows].count("redistribution") == 3
    assert not any(row["away"] for row in rows)
    orders = [(client, message.content["order"]) for client, message, _ in grid.log]
    seen: set[int] = set()
    for client, order in orders:
        if order.get("send") == "part" and order["start"] in (6, 12, 18):
            known = client in seen
            assert (order["bring"] == "whole") == (not known)
        if order.get("send") == "part":
            seen.add(client)


def test_an_aggregate_that_makes_no_message_stops_with_a_sentence(tmp_path: Path) -> None:
    run = server(federation(tmp_path, {}), lambda messages, weights, about: messages[0, 1:])
    with pytest.raises(ValueError, match=r"the aggregate made torch\.float64"):
        list(run)
