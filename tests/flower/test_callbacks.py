"""Metrics, sinks and functions of one's own, as everywhere: by name, from the app's folder."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from tests.flower.federation import BASE, everything, federation, held_back, owned, server
from tests.flower.grid import FakeGrid
from torch.nn import functional as F

from partavg import Patience, evaluate, own_code
from partavg.sinks.sink import SinkFailed

MINE = """
from torch.nn import functional as F

def brier(outputs, targets):
    wrong = outputs.softmax(1) - F.one_hot(targets, outputs.shape[1])
    return wrong.square().sum(), len(targets)

class Noted:
    def begin(self, about):
        self.file = (about.folder / "noted.txt").open("a")
        self.file.write(f"{about.label}\\n")
    def take(self, row):
        self.file.write(f"{row['stage']} {row['step']}\\n")
    def end(self, summary):
        self.file.write("done" if summary else "stopped")
        self.file.close()
"""
APP = """
from partavg.flower import client_app, server_app
from tests.flower.federation import F, held_back, model, owned

rows = []
client = client_app(model, F.cross_entropy, owned, test=held_back)
server = server_app(model, F.cross_entropy, sinks=[rows.append])
"""


def imported(folder: Path) -> Any:
    """An app in a folder of its own, far from where this process works."""
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    (folder / "app.py").write_text(APP)
    spec = importlib.util.spec_from_file_location("an_app", folder / "app.py")
    assert spec
    assert spec.loader
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    return app


def test_an_app_with_metrics_sinks_and_a_function_of_its_own(tmp_path: Path) -> None:
    """The server has no samples: what `brier` adds up on clients is all there is."""
    app = imported(tmp_path / "app")
    config = {
        **BASE, "training.steps": 4, "flower.folder": str(tmp_path / "run"),
        "metrics.extra": '["mine.py:brier"]', "metrics.sinks": '["mine.py:Noted"]',
    }  # fmt: skip
    nodes = {i: {"partition-id": i, "state-dir": str(tmp_path / f"node{i}")} for i in range(3)}
    grid = FakeGrid(app.client, config, nodes)
    app.server(grid, Context(1, 0, {}, RecordDict(), config))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == app.rows
    assert app.rows[-1]["stage"] == "evaluation"
    assert 0 < app.rows[-1]["brier"] < 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["brier"] == app.rows[-1]["brier"]
    noted = (tmp_path / "run" / "noted.txt").read_text().split("\n")
    assert noted == ["test", *(f"{row['stage']} {row['step']}" for row in app.rows), "done"]
    assert "def brier" in (tmp_path / "run" / "code" / "mine.py").read_text()


def test_a_metric_of_ones_own_is_the_same_on_clients_and_on_the_server(tmp_path: Path) -> None:
    """The same samples in three places and in one."""
    imported(tmp_path / "app")
    name = f"{tmp_path / 'app' / 'mine.py'}:brier"
    run = server(
        federation(tmp_path, {"training.steps": 4, "metrics.extra": f'["{name}"]'}, test=owned),
        has_samples=False,
    )
    *_, row = run
    brier = own_code.executed(name).module.brier
    found = evaluate(run.model(), F.cross_entropy, everything(), metrics=[brier])
    assert row["brier"] == pytest.approx(found.metrics["brier"], abs=1e-9)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"averaging.parts": 1},
        {"participation.fraction": 0.67, "participation.every": 4, "averaging.buffers": "every",
         "participation.redistribution": "permute"},
    ],
)  # fmt: skip
def test_a_function_of_rows_ends_a_run_early(tmp_path: Path, changes: dict[str, Any]) -> None:
    """What is left is done: u at that step, the evaluation, the summary; and it is what it says."""
    asked: list[Any] = []

    def stop(row: Any) -> bool:
        asked.append(row["stage"])
        return bool(row["step"] >= 4)

    config = {**changes, "training.steps": 16, "metrics.clients_every": 4}
    grid = federation(tmp_path, config, test=held_back)
    rows = list(server(grid, stop=stop))
    assert [(row["stage"], row["step"]) for row in rows[-2:]] == [("end", 4), ("evaluation", 4)]
    assert set(asked) <= {"exchange", "evaluation"}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["stopped_at"]) == (4, 4)
    short = federation(tmp_path / "4", {**config, "training.steps": 4}, test=held_back)
    whole = list(server(short))
    assert rows[-1]["clients_loss"] == pytest.approx(whole[-1]["clients_loss"], abs=1e-12)


def test_stopped_early_and_killed_it_still_ends_there(tmp_path: Path) -> None:
    """What the function saw before is shown to it again, and the end is not forgotten."""
    changes = {"training.steps": 12, "metrics.evaluate_every": 1}
    ends = []
    for killed in (False, True):
        rows: list[Any] = []
        while not rows or rows[-1]["stage"] != "end":
            grid = federation(tmp_path / str(killed), changes)
            patience = Patience("accuracy", 3, "lower")  # it gets higher
            run = server(grid, stop=patience, **{"flower.resume": True})
            for row in run:
                rows.append(row)
                if killed and row["stage"] != "end":
                    break
        ends.append([(row["stage"], row["step"]) for row in rows])
        assert run.folder.summary()["stopped_at"] == rows[-1]["step"] < 12
    assert ends[0] == ends[1]


def test_a_sink_that_fails_stops_the_run_with_a_sentence(tmp_path: Path) -> None:
    def fails(row: Any) -> None:
        raise KeyError("no such thing")

    grid = federation(tmp_path, {"training.steps": 4})
    with pytest.raises(
        SinkFailed, match="failed at step 1 with KeyError: 'no such thing'; mend it"
    ):
        list(server(grid, sinks=[fails]))
    rows = list(server(grid, **{"flower.resume": True}))
    assert rows[-1]["stage"] == "end"
