"""Metrics for MLflow, in a database beside the runs, read back by its client."""

import json
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests import tasks
from tests.cli.program import LONG, RECIPE, wait_for_rows
from tests.processes import Command

from partavg.cli import main
from partavg.config_toml import settings
from partavg.session import Diverged
from partavg.sinks import SINKS
from partavg.sinks import mlflow as sink
from partavg.sinks.mlflow import MLflow
from partavg.sinks.sink import Feed, RunInfo, SinkFailed

pytestmark = [
    pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed"),
    # of the packages that it uses
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ASKED = {"metrics": {"sinks": ["mlflow"]}}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without runs: MLflow writes it to disk in a hundred steps."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(autouse=True)
def _in_a_database(tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(empty, tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def found(experiment: str = "partavg", uri: str | None = None) -> list[Any]:
    """The runs that MLflow has, the newest first."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    known = client.get_experiment_by_name(experiment)
    return list(client.search_runs([known.experiment_id])) if known else []


def rows(run: Any) -> list[dict[str, Any]]:
    """The rows of a run as ours are; a step that is there twice is an error."""
    from mlflow import MlflowClient

    table: dict[int, dict[str, Any]] = {}
    for key in run.data.metrics:
        if not key.startswith("summary/"):
            for point in MlflowClient().get_metric_history(run.info.run_id, key):
                row = table.setdefault(point.step, {"step": point.step})
                assert key not in row, f"{key} of step {point.step} is there twice"
                row[key] = point.value
    return [table[step] for step in sorted(table)]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """What of a row there should be."""
    return {key: value for key, value in row.items() if not isinstance(value, list)}


def test_all_of_a_run_is_there(tmp_path: Path) -> None:
    run = tasks.run(tmp_path / "mine", **ASKED)
    taken = [plain(row) for row in run]
    (there,) = found()
    assert rows(there) == taken
    assert (there.info.run_name, there.info.status) == ("mine", "FINISHED")
    assert there.data.params == {key: str(value) for key, value in settings(run.config).items()}
    assert there.data.tags["outcome"] == "finished"
    assert "group" not in there.data.tags
    summary = {k: v for k, v in run.folder.summary().items() if isinstance(v, int | float)}
    told = {k: v for k, v in there.data.metrics.items() if k.startswith("summary/")}
    assert told == {f"summary/{key}": value for key, value in summary.items()}


def test_options_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "theirs")
    uri = f"sqlite:///{tmp_path}/other.db"
    options = {"run": "first", "group": "all", "tags": {"machine": "cpu"}, "tracking_uri": uri}
    list(tasks.run(tmp_path / "mine", metrics={"sinks": [{"name": "mlflow", **options}]}))
    (there,) = found("theirs", uri)
    assert there.info.run_name == "first"
    assert there.data.tags.items() >= {"group": "all", "machine": "cpu"}.items()
    with Feed([MLflow(experiment="mine")], RunInfo("no folder", 1)) as feed:
        feed.take({"step": 1, "loss": 0.5, "parts": [1, 2], "note": "left out", "none": None})
    (there,) = found("mine")
    assert (there.info.run_name, there.info.status) == ("no folder", "KILLED")
    assert rows(there) == [{"step": 1, "loss": 0.5}]


def test_passwords_do_not_belong_in_recipes() -> None:
    for uri in ("https://me:secret@example.com", "postgresql://me:secret@example.com/runs"):
        with pytest.raises(ValueError, match=r"holds a password, .* leave it out") as e:
            MLflow(tracking_uri=uri)
        assert "secret" not in str(e.value)


@pytest.mark.parametrize("every", [0.0, 1e9])
def test_a_resumed_run_goes_on_and_has_no_step_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: float
) -> None:
    monkeypatch.setattr(sink, "_SEND_EVERY", every)
    for row in tasks.run(tmp_path / "mine", **ASKED):
        if row["step"] == 8:  # the last checkpoint is that of step 6
            break
    (there,) = found()
    assert (there.info.status, there.data.tags["outcome"]) == ("KILLED", "stopped")
    assert len(rows(there)) == 8
    run = tasks.run(tmp_path / "mine", resume=True, **ASKED)
    list(run)
    (there,) = found()
    assert rows(there) == [plain(row) for row in run.folder.rows()]
    assert (there.info.status, there.data.tags["outcome"]) == ("FINISHED", "finished")
    list(tasks.run(tmp_path / "mine", force=True, **ASKED))
    assert len(found()) == 2, "a new run is a new one there"


def test_what_could_not_be_sent_is_sent_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setattr(sink, "_SEND_EVERY", 0.0)
    log_batch, tried = MlflowClient.log_batch, []

    def breaks(self: Any, run: str, metrics: Any = (), **others: Any) -> None:
        tried.extend(metrics[:1])
        if len(tried) > 4:
            raise ConnectionError("no route\nto host")
        log_batch(self, run, metrics=metrics, **others)

    def breaking(row: dict[str, Any]) -> None:
        raise KeyError(row["step"])

    with monkeypatch.context() as broken:
        broken.setattr(MlflowClient, "log_batch", breaks)
        sentence = "sink MLflow failed at step 5 with ConnectionError: no route to host; mend it"
        with pytest.raises(SinkFailed, match=sentence):
            list(tasks.run(tmp_path / "mine", **ASKED))
        assert len(tried) == 5, "it is not asked again"
    with monkeypatch.context() as broken:
        broken.setitem(SINKS, "other", breaking)
        both = {"metrics": {"sinks": ["mlflow", "other"]}}
        with pytest.raises(SinkFailed, match="sink breaking failed at step 4"):
            list(tasks.run(tmp_path / "mine", resume=True, **both))
    (there,) = found()
    assert there.info.status == "FAILED"
    assert there.data.tags["reason"].startswith("sink breaking failed at step 4 with KeyError")
    run = tasks.run(tmp_path / "mine", resume=True, **ASKED)
    list(run)
    (there,) = found()
    assert rows(there) == [plain(row) for row in run.folder.rows()]
    assert there.data.tags.items() >= {"outcome": "finished", "reason": ""}.items()


def test_divergence_is_marked(tmp_path: Path) -> None:
    wild = {"training": {"lr": 1e15}, "model": {"batch_norm": False, "dropout": 0.0}}
    with pytest.raises(Diverged) as raised:
        list(tasks.run(tmp_path / "mine", **wild, **ASKED))
    (there,) = found()
    assert there.info.status == "FAILED"
    assert there.data.tags.items() >= {"outcome": "diverged", "reason": str(raised.value)}.items()


def test_the_runs_of_a_comparison_are_a_group() -> None:
    Path("recipe.toml").write_text(RECIPE)
    command = ["compare", "recipe.toml", "--schemes", "periodic,partial", "--out", "runs/both"]
    asked = ["--set", 'metrics.sinks=[{name="mlflow", experiment="mine"}]']
    done = CliRunner().invoke(main, [*command, *asked])
    assert done.exit_code == 0, done.output
    there = found("mine")
    assert {run.info.run_name for run in there} == {"periodic-seed0", "partial-seed0"}
    assert {run.data.tags["group"] for run in there} == {"both"}
    assert {run.info.status for run in there} == {"FINISHED"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_stopped_or_killed(tmp_path: Path, number: signal.Signals) -> None:
    Path("recipe.toml").write_text(RECIPE)
    words = ["run", "recipe.toml", *LONG, "--out", "out", "--set", 'metrics.sinks=["mlflow"]']
    process = Command(words, tmp_path, halts=40)
    wait_for_rows(tmp_path / "out/metrics.jsonl", 40, process)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (130 if number == signal.SIGTERM else -9)
    (there,) = found()
    assert there.info.status == ("KILLED" if number == signal.SIGTERM else "RUNNING")
    again = Command([*words, "--resume"], tmp_path)
    _, said = again.communicate()
    assert again.returncode == 0, said
    (there,) = found()
    ours = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    assert rows(there) == [plain(row) for row in ours]
    assert there.info.status == "FINISHED"


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    options = {"name": "mlflow", "tracking_uri": "http://127.0.0.1:9"}
    with pytest.raises(SinkFailed, match=r"sink MLflow failed at the start with .*127") as raised:
        list(tasks.run(tmp_path / "mine", metrics={"sinks": [options]}))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_run_that_another_server_has(tmp_path: Path) -> None:
    for row in tasks.run(tmp_path / "mine", **ASKED):
        if row["step"] == 8:
            break
    options = {"name": "mlflow", "tracking_uri": f"sqlite:///{tmp_path}/other.db"}
    with pytest.raises(SinkFailed, match=r"sink MLflow failed at the start with .*not found"):
        list(tasks.run(tmp_path / "mine", resume=True, metrics={"sinks": [options]}))


def test_without_mlflow_a_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partavg.sinks.needs.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed: pip install 'partavg\[mlflow\]'$"):
        MLflow()
