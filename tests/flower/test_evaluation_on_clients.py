"""Evaluation on clients: a server without samples sees what one with all of them would."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from tests.flower.faults import fault
from tests.flower.federation import (
    CLIENTS,
    PERIODIC,
    federation,
    held_back,
    server,
    simulation,
)
from tests.flower.grid import FakeGrid
from tests.flower.test_faults import QUICK, original
from torch import Tensor
from torch.nn import functional as F

from partavg import checkpoint, evaluate
from partavg.evaluation import scores_of
from partavg.flower import scores
from partavg.flower.messages import ORDER, PART, SCORES

MOMENTUM = {"solver.momentum": 0.9}
EACH, SOME = {"metrics.clients_every": 1}, {"metrics.clients_every": 3}
TURNS = {"participation.fraction": 0.67, "participation.every": 4, "averaging.buffers": "every",
         "averaging.parts": 2}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "partial": MOMENTUM,
    "periodic": {**MOMENTUM, **PERIODIC},
    "two parts, steps left": {"averaging.parts": 2, "training.steps": 7, **MOMENTUM},
    "scaffold": {"solver.name": "scaffold"},
    "fednova": {"solver.name": "fednova", "solver.base.momentum": 0.9},
    "fedadam": {"solver.name": "fedadam"},
    "a personal head": {"averaging.local": '["4.*"]', **MOMENTUM},
    **{
        f"taking turns, {how}": {**TURNS, "participation.redistribution": how}
        for how in ("permute", "average")
    },
    "taking turns, a personal norm": {
        **TURNS, "participation.redistribution": "average", "averaging.local": '["1.*"]',
    },
}  # fmt: skip


def union() -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    """The test samples of all clients in one place, and whose they are."""
    nodes: list[Any] = [SimpleNamespace(node_config={"partition-id": i}) for i in range(CLIENTS)]
    x, y = zip(*map(held_back, nodes), strict=True)
    places = torch.arange(sum(map(len, y)))
    return (torch.cat(x), torch.cat(y)), list(torch.split(places, list(map(len, y))))


def examined(grid: FakeGrid) -> list[tuple[int, str, int]]:
    """Who was asked for scores, what came along, and after which step."""
    orders = [(client, m.content[ORDER]) for client, m, _ in grid.log]
    return [(c, o["bring"], o["start"]) for c, o in orders if o.get("send") == "scores"]


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_simulations_on_all_test_samples(tmp_path: Path, case: str) -> None:
    """To 1e-9: in between of what the server has, at the end of u_K, of all and of each client."""
    changes = {"training.steps": 8, **SOME, "metrics.extra": '["perplexity"]', **CASES[case]}
    run = server(federation(tmp_path, changes, test=held_back), has_samples=False)
    local = json.loads(changes.get("averaging.local", "[]"))
    (samples, whose), seen = union(), 0
    for row in run:
        if row["stage"] == "evaluation" and not local:
            found = evaluate(run.model(), F.cross_entropy, samples, metrics=["perplexity"])
            assert row["test_loss"] == pytest.approx(found.loss, abs=1e-9)
            assert [row[key] for key in found.metrics] == pytest.approx([*found.metrics.values()])
            seen += 1
    made = simulation(changes, **({"local": local} if local else {}))
    assert (row["stage"], row["step"]) == ("evaluation", made.workers.step)
    own = [found for found in made.evaluate_clients(samples, whose) if found]
    accuracies = [found.accuracy or 0 for found in own]
    assert row["clients_accuracy"] == pytest.approx(sum(accuracies) / CLIENTS, abs=1e-9)
    assert row["clients_accuracy_worst"] == pytest.approx(min(accuracies), abs=1e-9)
    if local:
        counts = [len(each) for each in whose]
        loss = sum(n * found.loss for n, found in zip(counts, own, strict=True)) / sum(counts)
    else:
        assert seen > 1
        loss = made.evaluate(samples).loss
    assert row["test_loss"] == pytest.approx(loss, abs=1e-9)


def test_clients_that_hold_the_averages_are_not_sent_them(tmp_path: Path) -> None:
    """Until the end evaluations cost no model: what is due to a client comes a little earlier."""
    received = {}
    for every in (0, 1):
        changes = {**MOMENTUM, "training.steps": 4, "metrics.clients_every": every}
        grid = federation(tmp_path / str(every), changes, test=held_back)
        *_, ended = [row for row in server(grid) if row["stage"] == "end"]
        received[every] = ended["received"]["0"]
    asked = examined(grid)
    assert [(c, bring) for c, bring, step in asked if step < 4] == [
        (c, "sums") for _ in range(3) for c in range(CLIENTS)
    ]
    assert [(c, bring) for c, bring, step in asked if step == 4] == [
        (c, "averages") for c in range(CLIENTS)
    ]
    assert 0 < received[1] - received[0] < 3 * 700, "three small messages"


def test_with_periodic_averaging_no_model_travels_for_the_last_one_either(tmp_path: Path) -> None:
    grid = federation(tmp_path, {**PERIODIC, **EACH, "training.steps": 8}, test=held_back)
    list(server(grid))
    assert [bring for _, bring, _ in examined(grid)] == ["sums"] * 3 + ["nothing"] * 3
    assert not any(
        PART in r.content for _, m, r in grid.log if m.content[ORDER].get("send") == "scores"
    )


@pytest.mark.parametrize("parts", [1, 2])
def test_to_look_at_the_averages_changes_nothing(tmp_path: Path, parts: int) -> None:
    """Who is evaluated, how often and with what brought along is no matter of the training."""
    ends = []
    for name, changes in {"never": {"metrics.clients_every": 0}, "each": EACH}.items():
        changes = {
            **changes,
            **TURNS,
            "participation.redistribution": "none",
            "training.steps": 12 * (3 - parts),
            "averaging.parts": parts,
        }
        grid = federation(
            tmp_path / name, {**QUICK, "flower.min_clients": 1, **changes}, test=held_back
        )
        grid.fault = lambda client, message: (
            "late"
            if client == 0 and message.content[ORDER].get("start") == 4
            and message.content[ORDER]["send"] == "part" else None
        )  # fmt: skip
        run = server(grid)
        list(run)
        ends.append(run.server.mirror.params.clone())
    assert {bring for _, bring, _ in examined(grid)} >= {"sums", "averages"}
    assert torch.equal(*ends)


def test_killed_in_between_it_goes_on(tmp_path: Path) -> None:
    """Stopped after every row: the same scores, and the clients' copies are kept."""
    changes = {**EACH, **MOMENTUM, "training.steps": 5}
    whole = list(server(federation(tmp_path / "whole", changes, test=held_back), has_samples=False))
    rows: list[Any] = []
    while not rows or rows[-1]["step"] < 5 or rows[-1]["stage"] != "evaluation":
        grid = federation(tmp_path / "killed", changes, test=held_back)
        run = iter(server(grid, has_samples=False, **{"flower.resume": True}))
        rows.append(next(run))
        run.close()  # type: ignore[attr-defined]
    assert [row.get("test_loss") for row in rows] == [row.get("test_loss") for row in whole]


def test_some_have_no_test_samples(tmp_path: Path) -> None:
    grid = federation(
        tmp_path,
        {**MOMENTUM, "training.steps": 4},
        test=lambda context: (
            None if context.node_config["partition-id"] == 1 else held_back(context)
        ),
    )
    *_, row = server(grid, has_samples=False)
    assert row["clients"] == [0, 2]
    assert row["away"] == {}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["clients_left_out"] == 1
    assert summary["clients"]["1"]["tests"] == 0
    assert summary["clients"]["1"]["scored"] == {}
    assert summary["clients"]["0"]["tests"] == 20
    assert summary["clients"]["0"]["scored"]["step"] == 4
    assert summary["clients"]["1"]["seen"] == 4


def test_nobody_has_test_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        rows = list(server(federation(tmp_path, {"training.steps": 4}), has_samples=False))
    assert "accuracy" not in rows[-1]
    assert caplog.text.count("neither the server nor a client has test samples") == 1
    asked = federation(tmp_path / "asked", {"metrics.extra": '["perplexity"]'})
    with pytest.raises(ValueError, match="'perplexity' is measured on test samples, and neither"):
        list(server(asked, has_samples=False))


def test_local_models_are_measured_if_asked_for(tmp_path: Path) -> None:
    """On their own clients' samples, while the server's are for the average."""
    changes = {**EACH, "training.steps": 4, "metrics.local_accuracy": '["mean", "all"]'}
    run = server(federation(tmp_path, changes, test=held_back))
    *_, row = run
    assert len(row["accuracy_all"]) == CLIENTS
    assert row["accuracy_mean"] == pytest.approx(sum(row["accuracy_all"]) / CLIENTS)
    assert "test_loss" not in row, "the server has samples of its own"
    kept = checkpoint.load(next((tmp_path / "node0" / "test" / "client-0").iterdir())) or {}
    local = kept["workers"]["params"][0], kept["workers"]["buffers"][0]
    module = run.server._agreement.model.module(*local)
    samples, whose = union()
    own = samples[0][whose[0]], samples[1][whose[0]]
    assert row["accuracy_all"][0] == evaluate(module, F.cross_entropy, own).accuracy


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "more right than there are": ({"average.score.accuracy.sum": 61.0}, "does not allow"),
    "less than none right": ({"average.score.accuracy.sum": -1.0}, "does not allow"),
    "a negative perplexity": ({"average.score.perplexity.sum": -1.0}, "does not allow"),
    "a loss beyond all": ({"average.loss.sum": 1e300}, "does not allow"),
    "not finite": ({"average.loss.sum": float("nan")}, "no finite number"),
    "text": ({"average.loss.sum": "big"}, "no finite number"),
    "truth": ({"average.loss.sum": True}, "no finite number"),
    "many": ({"average.loss.sum": [0.0] * 20_000}, "no finite number"),
    "two for one": ({"average.loss.sum": [1.0, 2.0]}, "2 sums and 1 counts"),
    "a list for its loss": (
        {"average.loss.sum": [1.0, 2.0], "average.loss.count": [1.0, 2.0]},
        "its loss is a list, and not one sum",
    ),
    "a negative count": ({"average.loss.count": -4.0}, "not between 0 and"),
    "a count beyond all": ({"average.loss.count": 1e9}, "flower.max_samples = 10000000"),
    "samples beyond all": ({"samples": 10**12}, "test samples, which is not between 1 and"),
    "no number of samples": ({"samples": "x" * 1000}, "test samples, which is not between 1 and"),
    "something else": ({"average.score.mae.sum": 1.0}, "that nobody asked for"),
    "a vector where others have a number": (
        {"average.score.accuracy.sum": [1.0], "average.score.accuracy.count": [2.0]},
        "not those that most clients have",
    ),
    "nothing counted": (
        {"average.loss.sum": 0.0, "average.loss.count": 0.0}, "has a target that counts",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an honest client says."""
    changes = {"training.steps": 1, "metrics.extra": '["perplexity"]'}
    grid = federation(tmp_path_factory.mktemp("honest"), changes, test=held_back)
    list(server(grid, has_samples=False))
    return dict(grid.log[-1][2].content[SCORES])


def believed(honest: dict[str, Any], **changes: Any) -> scores.Scores:
    """What a server with two honest clients makes of what a third one says."""
    wanted, most = scores_of(["perplexity"]), 10_000_000
    said = scores.read(RecordDict({SCORES: ConfigRecord(honest)}), wanted, most)
    told = scores.read(RecordDict({SCORES: ConfigRecord({**honest, **changes})}), wanted, most)
    for reason in scores.of_another_kind({0: told, 1: said, 2: said}).values():
        raise ValueError(reason)
    return told


@pytest.mark.parametrize("lie", LIES)
@fault("What a client says of its test samples", "{lie}", lie=LIES)
def test_lies_are_found_out(honest: dict[str, Any], lie: str) -> str:
    assert believed(honest).samples == 60
    changes, sentence = LIES[lie]
    with pytest.raises(ValueError, match=sentence) as caught:
        believed(honest, **changes)
    assert len(str(caught.value)) < 200
    return f"left out of that evaluation: “{caught.value}”"


@fault("What a client says of its test samples", "all of a million right, of some")
def test_a_lying_client_is_left_out_and_named(tmp_path: Path) -> str:
    grid = federation(tmp_path, {**QUICK, "training.steps": 1}, test=held_back)

    def lies(client: int, reply: Message) -> Message:
        if client == 0 and SCORES in reply.content:
            record = ConfigRecord({**reply.content[SCORES], "average.score.accuracy.sum": 1e6})
            content = RecordDict({**reply.content, SCORES: record})
            return Message(content, reply_to=original(reply))
        return reply

    grid.after = lies
    *_, row = server(grid, has_samples=False)
    assert row["clients"] == [1, 2]
    assert row["away"] == {"0": "average.score.accuracy has a sum that its count does not allow"}
    assert 0 <= row["accuracy"] <= 1
    return "it is left out of the evaluation, and named in `away`; the others' sums are added up"


@fault("What a client says of its test samples", "wrong numbers that can be")
def test_how_far_a_plausible_lie_goes(tmp_path: Path) -> str:
    """Client 0 has 20 of 120 test samples, and says that all of them are classified rightly."""
    rows = []
    for lie in (False, True):
        grid = federation(tmp_path / str(lie), {**QUICK, "training.steps": 1}, test=held_back)

        def flatters(client: int, reply: Message) -> Message:
            if client == 0 and SCORES in reply.content:
                record = {**reply.content[SCORES], "average.score.accuracy.sum": 20.0}
                content = RecordDict({**reply.content, SCORES: ConfigRecord(record)})
                return Message(content, reply_to=original(reply))
            return reply

        grid.after = flatters if lie else grid.after
        rows.append(list(server(grid, has_samples=False))[-1])
    moved = rows[1]["accuracy"] - rows[0]["accuracy"]
    assert 0 < moved <= 20 / 120
    assert 0 < rows[1]["clients_accuracy"] - rows[0]["clients_accuracy"] <= 1 / CLIENTS
    return (
        "believed: a client with n of N test samples moves the accuracy by n / N at most, and the "
        "mean over m clients by 1 / m; the loss by as much as it likes"
    )
