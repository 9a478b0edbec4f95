"""Metrics for Weights & Biases, offline, read back from its files."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests import tasks
from tests.cli.program import LONG, RECIPE, wait_for_rows
from tests.processes import Command
from tests.wandb_file import Written, written

import partavg
from partavg.cli import main
from partavg.config_toml import settings
from partavg.session import Diverged
from partavg.sinks.sink import Feed, RunInfo, SinkFailed
from partavg.sinks.wandb import WandB

wandb = pytest.importorskip("wandb")

ASKED = {"metrics": {"sinks": ["wandb"]}}
KEY = "0123456789" * 4


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-own"))
    for name in ("WANDB_PROJECT", "WANDB_DIR", "WANDB_RUN_GROUP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    yield
    wandb.teardown()  # it reads its variables once


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """What of a row there should be."""
    return {key: value for key, value in row.items() if not isinstance(value, list)}


def rows(*runs: Written) -> list[dict[str, Any]]:
    """The rows of a run as ours are."""
    return [
        {"step": row["_step"]} | {key: value for key, value in row.items() if key[0] != "_"}
        for run in runs
        for row in run.rows
    ]


def test_all_of_a_run_is_there_and_no_secret(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    address = "https://hushhush@example.com/mine.git"
    subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", address], check=True)
    run = tasks.run(tmp_path / "mine", **ASKED)
    taken = [plain(row) for row in run]
    (found,) = written(tmp_path / "mine")
    assert rows(found) == taken
    assert (found.name, found.project, found.group, found.exit_code) == ("mine", "partavg", "", 0)
    told = {key: value for key, value in found.config.items() if key != "_wandb"}
    assert told == settings(run.config)
    assert run.folder.summary().items() <= found.summary.items()
    assert found.summary["outcome"] == "finished"
    for path in filter(Path.is_file, (tmp_path / "mine").rglob("*")):
        assert not re.search(f"{KEY}|hushhush".encode(), path.read_bytes()), path


def test_options_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    options = {"name": "wandb", "run": "first", "group": "all", "tags": ["small", "cpu"]}
    list(tasks.run(tmp_path / "mine", metrics={"sinks": [options]}))
    (found,) = written(tmp_path / "elsewhere")
    assert not list((tmp_path / "mine").glob("wandb*"))
    assert (found.name, found.project, found.group) == ("first", "theirs", "all")
    assert set(found.tags) == {"small", "cpu"}
    with Feed([WandB(project="mine")], RunInfo("no folder", 1)) as feed:
        feed.take({"step": 1, "loss": 0.5, "parts": [1, 2], "note": "left out", "none": None})
    *_, last = sorted(written(tmp_path / "elsewhere"), key=lambda run: run.project == "mine")
    assert (last.project, last.name) == ("mine", "no folder")
    assert rows(last) == [{"step": 1, "loss": 0.5}]


def test_a_resumed_run_goes_on_and_has_no_step_twice(tmp_path: Path) -> None:
    for row in tasks.run(tmp_path / "mine", **ASKED):
        if row["step"] == 8:  # the last checkpoint is that of step 6
            break
    (first,) = written(tmp_path / "mine")
    assert (first.exit_code, first.summary["outcome"]) == (1, "stopped")
    assert json.loads((tmp_path / "mine/sinks/wandb.json").read_text())["rows"] == 8
    run = tasks.run(tmp_path / "mine", resume=True, **ASKED)
    list(run)
    first, second = sorted(written(tmp_path / "mine"), key=lambda run: run.rows[0]["_step"])
    assert first.id == second.id
    assert rows(first, second) == [plain(row) for row in run.folder.rows()]
    assert (second.exit_code, second.summary["outcome"]) == (0, "finished")
    list(tasks.run(tmp_path / "mine", force=True, **ASKED))
    assert len({run.id for run in written(tmp_path / "mine")}) == 2, "a new run has a new id"


def test_a_sink_that_comes_later_gets_the_rows_of_before(tmp_path: Path) -> None:
    for row in tasks.run(tmp_path / "mine"):
        if row["step"] == 8:
            break
    run = tasks.run(tmp_path / "mine", resume=True, **ASKED)
    list(run)
    (found,) = written(tmp_path / "mine")
    assert rows(found) == [plain(row) for row in run.folder.rows()]


def test_divergence_is_marked(tmp_path: Path) -> None:
    wild = {"training": {"lr": 1e15}, "model": {"batch_norm": False, "dropout": 0.0}}
    with pytest.raises(Diverged) as raised:
        list(tasks.run(tmp_path / "mine", **wild, **ASKED))
    (found,) = written(tmp_path / "mine")
    assert (found.exit_code, found.summary["outcome"]) == (1, "diverged")
    assert found.summary["reason"] == str(raised.value)
    assert found.tags == ("diverged",)


def test_the_runs_of_a_comparison_are_a_group(tmp_path: Path) -> None:
    Path("recipe.toml").write_text(RECIPE)
    command = ["compare", "recipe.toml", "--schemes", "periodic,partial", "--out", "runs/both"]
    asked = ["--set", 'metrics.sinks=[{name="wandb", project="mine"}]']
    done = CliRunner().invoke(main, [*command, *asked])
    assert done.exit_code == 0, done.output
    found = {run.name: run for run in written(tmp_path / "runs")}
    assert found.keys() == {"periodic-seed0", "partial-seed0"}
    assert {(run.project, run.group) for run in found.values()} == {("mine", "both")}
    assert [run.summary["messages"] for run in found.values()] == [
        json.loads(Path(f"runs/both/{name}/summary.json").read_text())["messages"] for name in found
    ]


def test_a_comparison_in_python(tmp_path: Path) -> None:
    x = torch.randn(40, 4)
    y = (x[:, 0] > 0).long()

    def simulation(schedule: partavg.Schedule, seed: int) -> partavg.Simulation:
        torch.manual_seed(seed)
        return partavg.Simulation(
            torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy, (x, y),
            partavg.iid(y, 4, seed=0), schedule=schedule, lr=0.1, batch=5, seed=seed,
        )  # fmt: skip

    rows_of_both: list[dict[str, Any]] = []
    partavg.compare(
        simulation, 4, interval=2, every=2, out=tmp_path / "both",
        sinks=[{"name": "wandb", "project": "mine"}, rows_of_both.append],
    )  # fmt: skip
    found = {run.name: run for run in written(tmp_path / "both")}
    assert found.keys() == {"periodic-seed0", "partial-seed0", "synchronous-seed0"}
    assert {(run.project, run.group) for run in found.values()} == {("mine", "both")}
    assert rows(*found.values()) == [
        plain(json.loads(line))
        for name in found
        for line in (tmp_path / "both" / name / "metrics.jsonl").read_text().splitlines()
    ]
    assert len(rows_of_both) == 6


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_or_killed(tmp_path: Path, number: signal.Signals) -> None:
    Path("recipe.toml").write_text(RECIPE)
    words = ["run", "recipe.toml", *LONG, "--out", "out", "--set", 'metrics.sinks=["wandb"]']
    process = Command(words, tmp_path, halts=40)
    wait_for_rows(tmp_path / "out/metrics.jsonl", 40, process)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else -9)
    again = Command([*words, "--resume"], tmp_path)
    _, said = again.communicate()
    assert again.returncode == 0, said
    ours = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    first, second = sorted(written(tmp_path / "out"), key=lambda run: run.exit_code == 0)
    if number == signal.SIGINT:
        assert (first.id, first.exit_code) == (second.id, 1)
        assert rows(first, second) == [plain(row) for row in ours]
    else:  # what it had in memory was lost
        assert rows(second) == [plain(row) for row in ours]


def test_what_w_and_b_refuses_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "too short")
    run = tasks.run(tmp_path / "mine", **ASKED)
    with pytest.raises(SinkFailed, match=r"sink WandB failed at the start .*mend it") as raised:
        list(run)
    assert "\n" not in str(raised.value)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    wandb.teardown()
    list(tasks.run(tmp_path / "mine", resume=True, **ASKED))
    (found,) = written(tmp_path / "mine")
    assert len(found.rows) == 12


def test_without_w_and_b_a_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("partavg.sinks.needs.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed: pip install 'partavg\[wandb\]'$"):
        WandB()


def test_a_damaged_bookmark(tmp_path: Path) -> None:
    (tmp_path / "sinks").mkdir()
    (tmp_path / "sinks/wandb.json").write_text("{")
    with (
        pytest.raises(SinkFailed, match=r"wandb\.json is damaged: delete it, and the rows go to"),
        Feed([WandB()], RunInfo("mine", 1, folder=tmp_path)),
    ):
        pass
