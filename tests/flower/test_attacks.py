"""Who lies about numbers, samples or who he is changes nothing but his own part in the run."""

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from tests.flower.faults import fault
from tests.flower.federation import SOLVERS, assert_equal, federation, server
from tests.flower.test_faults import QUICK, altered, damaged, turn

from partavg import checkpoint
from partavg.flower.messages import ORDER, PART
from partavg.flower.plausible import Implausible
from partavg.flower.run import FederatedRun
from partavg.flower.weights import weights_of

CHANGES = {**QUICK, **SOLVERS["sgd with momentum"]}
MODELS = {
    "sgd": SOLVERS["sgd with momentum"],
    "scaffold": SOLVERS["scaffold"],
    "fedadam": {"solver.name": "fedadam"},
    "fednova": {"solver.name": "fednova"},
}


def sends(number: float, *turns: int, clients: tuple[int, ...] = (0,)) -> Callable[..., Message]:
    """Clients that send the same number everywhere."""

    def after(client: int, reply: Message) -> Message:
        if client in clients and int(reply.metadata.group_id) in turns:
            return damaged(reply, lambda x: torch.full_like(x, number))
        return reply

    return after


def attacked(folder: Path, after: Callable[..., Message], **changes: Any) -> FederatedRun:
    solver = {} if "solver.name" in changes else SOLVERS["sgd with momentum"]
    grid = federation(folder, {**QUICK, **solver, **changes})
    grid.after = after
    return server(grid)


@pytest.mark.parametrize(
    ("solver", "at"),
    [*product(["sgd"], [1, 3, 9, 13]), *product(["scaffold", "fedadam", "fednova"], [3])],
)
def test_numbers_far_out_are_left_out(tmp_path: Path, solver: str, at: int) -> None:
    """At the first average, later, and in the models at the end (turn 13)."""
    changes = {**MODELS[solver], "training.steps": 12}
    run = attacked(tmp_path, sends(1e30, at), **changes)
    rows = list(run)
    assert [0 in row["clients"] for row in rows] == [turn != at for turn in range(1, 14)]
    assert "flower.max_change = 100 allows" in rows[at - 1]["away"]["0"]
    assert rows[-1]["test_loss"] < 5


@pytest.mark.parametrize("number", [1e30, 1e300])
@fault("Poison", "a client sends {number} in every number", number=["1e+30", "1e+300"])
def test_the_average_is_that_of_the_others(tmp_path: Path, number: float) -> str:
    poisoned = attacked(tmp_path / "poisoned", sends(number, 3), **{"training.steps": 4})
    rows = list(poisoned)
    grid = federation(tmp_path / "late", {**CHANGES, "training.steps": 4})
    grid.fault = lambda client, message: "late" if (client, turn(message)) == (0, 3) else None
    late = server(grid)
    assert rows[2]["discrepancy_due"] == list(late)[2]["discrepancy_due"]
    assert_equal(poisoned.model(), late.model(), tolerance=0.1)
    return f"left out of that average, as if it had been late: “{rows[2]['away']['0']}”"


@fault("Poison", "a client sends 1e30 in the first average of all")
def test_poison_in_the_first_average(tmp_path: Path) -> str:
    rows = list(attacked(tmp_path, sends(1e30, 1), **{"training.steps": 4}))
    assert rows[-1]["test_loss"] < 5
    return f"left out of that average: “{rows[0]['away']['0']}”"


@fault("Poison", "a client sends 1e30 in its model at the end")
def test_poison_in_the_end(tmp_path: Path) -> str:
    rows = list(attacked(tmp_path, sends(1e30, 5), **{"training.steps": 4}))
    assert rows[-1]["stage"] == "end"
    assert rows[-1]["test_loss"] < 5
    return f"left out of that average: “{rows[-1]['away']['0']}”"


@fault("Poison", "a client sends 1e30 as the model that another goes on with (permute)")
def test_poison_for_another_client(tmp_path: Path) -> str:
    changes = {"participation.fraction": 0.67, "participation.every": 4,
               "participation.redistribution": "permute", "flower.min_clients": 1}  # fmt: skip
    run = attacked(tmp_path, sends(1e30, 5, clients=(0, 1, 2)), **changes)
    with pytest.raises(Implausible, match="too few clients are left"):
        list(run)
    one = attacked(tmp_path / "one", sends(1e30, 5), **changes, **{"training.seed": 4})
    rows = list(one)
    moved = next(row for row in rows if row["stage"] == "redistribution")
    assert "flower.max_change" in moved["away"]["0"]
    assert rows[-1]["test_loss"] < 5
    return f"not handed on: “{moved['away']['0']}”"


@fault("Poison", "two of three clients send 1e30, and two must be left")
def test_too_few_are_left_and_nothing_is_saved(tmp_path: Path) -> str:
    changes = {"training.steps": 6}
    grid = federation(tmp_path, {**CHANGES, **changes})
    grid.after = sends(1e30, 4, clients=(0, 2))
    run = server(grid)
    with pytest.raises(Implausible) as stopped:
        list(run)
    saved = checkpoint.load(run.folder.checkpoints)
    assert saved
    assert saved["server"]["progress"]["step"] == 3
    assert saved["server"]["mirror"]["params"].abs().max() < 10
    # What a client did in that turn it answers again: without the attacker the run goes on.
    grid.after = lambda client, reply: reply
    rows = list(server(grid, **{"flower.resume": True}))
    whole = server(federation(tmp_path / "whole", {**CHANGES, **changes}))
    assert rows[-1]["test_loss"] == list(whole)[-1]["test_loss"]
    told = str(stopped.value)
    assert "client 0: its message is" in told
    assert "client 2: its message is" in told
    return (
        "the run stops, with the checkpoint before it, and names them; resumed without them it "
        "ends as if nothing had happened"
    )


def test_who_wants_to_may_send_anything(tmp_path: Path) -> None:
    run = attacked(tmp_path, sends(1e6, 3), **{"flower.max_change": 0.0, "training.steps": 3})
    assert all(row["clients"] == [0, 1, 2] for row in run)


@fault("Poison", "an aggregate of the user's own makes numbers that are not finite")
def test_an_average_that_is_not_finite_is_not_saved(tmp_path: Path) -> str:
    grid = federation(tmp_path, CHANGES)
    run = server(grid, lambda messages, weights, about: messages[0] * math.inf)
    with pytest.raises(Implausible, match="at step 1 the average is not finite") as stopped:
        list(run)
    assert "farthest out: client" in str(stopped.value)
    assert run.server.mirror.params.isfinite().all()
    return "the run stops before it is saved, and says which clients' messages were farthest out"


HEALTHY: dict[str, dict[str, Any]] = {
    "warm-up": {"lr_schedule.name": "step", "lr_schedule.at": "[30]", "lr_schedule.warmup": 20},
    "decays": {"lr_schedule.name": "step", "lr_schedule.at": "[8, 16, 24]"},
    "large steps": {"training.lr": 1.0},
    "no steps at all": {"training.lr": 1e-12},
}


@pytest.mark.parametrize(
    ("solver", "what"),
    [*product(["sgd"], HEALTHY), *product(["scaffold", "fedadam", "fednova"], ["warm-up"])],
)
def test_healthy_runs_are_left_alone(tmp_path: Path, what: str, solver: str) -> None:
    changes = {**MODELS[solver], **HEALTHY[what], "training.steps": 28, "averaging.parts": 2}
    rows = list(server(federation(tmp_path, {**QUICK, **changes})))
    assert not any(row["away"] for row in rows)


@fault("Poison", "a client claims 10,000,000 samples, and weights = samples")
def test_no_client_owns_the_model(tmp_path: Path) -> str:
    def after(client: int, reply: Message) -> Message:
        return altered(reply, samples=10_000_000) if client == 0 else reply

    grid = federation(tmp_path, {**CHANGES, "averaging.weights": "samples", "training.steps": 2})
    grid.after = after
    rows = list(server(grid))
    assert all(row["capped"] == [0] for row in rows)
    sums, sent = (
        torch.frombuffer(bytearray(m.content[PART][PART].data), dtype=torch.float64)
        for m in (
            next(m for _, m, _ in grid.log if turn(m) == 2 and m.content[ORDER]["bring"] == "sums"),
            next(r for c, m, r in grid.log if turn(m) == 1 and c == 0),
        )
    )
    others = [r for c, m, r in grid.log if turn(m) == 1 and c != 0]
    one, two = (
        torch.frombuffer(bytearray(r.content[PART][PART].data), dtype=torch.float64) for r in others
    )
    mean = (300 * sent + 20 * one + 30 * two) / 350
    torch.testing.assert_close(sums, mean)
    return (
        "it counts ten times the median (flower.max_weight), and metrics.jsonl lists it as capped"
    )


@pytest.mark.parametrize(
    ("samples", "most", "expected", "capped"),
    [
        ({0: 10, 1: 20, 2: 70}, 10.0, {0: 0.1, 1: 0.2, 2: 0.7}, []),
        ({0: 10, 1: 10, 2: 10_000}, 8.0, {0: 0.1, 1: 0.1, 2: 0.8}, [2]),
        ({0: 10, 1: 10_000}, 9.0, {0: 0.1, 1: 0.9}, [1]),
        ({0: 1, 1: 9_999}, 0.0, {0: 0.0001, 1: 0.9999}, []),
    ],
)
def test_what_clients_count(
    samples: dict[int, int], most: float, expected: dict[int, float], capped: list[int]
) -> None:
    found = weights_of(samples, "samples", most)
    assert found == (pytest.approx(expected), capped)


@fault("Data", "a client's data grow (weights = uniform, and samples)")
def test_clients_whose_data_grow_stay(tmp_path: Path) -> str:
    for weights in ("uniform", "samples"):

        def after(client: int, reply: Message) -> Message:
            late = int(reply.metadata.group_id) >= 3
            return altered(reply, samples=25) if client == 0 and late else reply

        grid = federation(
            tmp_path / weights, {**CHANGES, "averaging.weights": weights, "training.steps": 6}
        )
        grid.after = after
        run = server(grid)
        rows = list(run)
        assert all(row["clients"] == [0, 1, 2] for row in rows)
        assert [row.get("samples") for row in rows[:4]] == [None, None, {"0": 25}, None]
        assert run.folder.summary()["clients"]["0"]["samples"] == 25
    return "it stays; the new count is logged, is in metrics.jsonl, and counts from then on"


@fault("Records", "a loss or a metric that is not finite")
def test_json_has_no_numbers_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    run = server(federation(tmp_path, {**CHANGES, "training.steps": 4}))
    monkeypatch.setattr(
        FederatedRun, "_evaluated", lambda self: {"test_loss": math.inf, "accuracy": math.nan}
    )
    list(run)
    strict: dict[str, Any] = {"parse_constant": lambda name: pytest.fail(f"{name} in JSON")}
    lines = run.folder.metrics_path.read_text().splitlines()
    found = [json.loads(line, **strict) for line in lines]
    json.loads(run.folder.summary_path.read_text(), **strict)
    assert found[-1]["test_loss"] is None
    return "null in metrics.jsonl and summary.json"


@fault("Records", "a client is away 10,000 times, each time with a long reason")
def test_histories_are_bounded(tmp_path: Path) -> str:
    run = server(federation(tmp_path, {**CHANGES, "training.steps": 4}))
    list(run)
    member = run.server.roster[0]
    for step in range(10_000):
        member.was_away(step, "x" * 300)
    assert member.absences == 10_000
    assert [step for step, _ in member.away] == list(range(9_900, 10_000))
    return "the last 100 are remembered, and all are counted"
