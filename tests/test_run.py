import json
import math
from importlib.metadata import PackageNotFoundError
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests import tasks
from tests.tasks import (
    AVERAGED,
    CLIENTS,
    KEPT,
    LATE,
    LAYERED,
    PERMUTED,
    POST_LOCAL,
    SHRINKING,
    finish,
)

from partavg import build, checkpoint
from partavg.config_toml import parse
from partavg.folder import environment
from partavg.recipes.files import read
from partavg.session import Diverged


@pytest.mark.parametrize(("final", "kept"), [(True, ["step-000000012"]), (False, [])])
def test_a_finished_run_keeps_its_last_state_if_asked(
    tmp_path: Path, final: bool, kept: list[str]
) -> None:
    run = tasks.run(tmp_path / "run", checkpoints={"every": 3, "final": final})
    assert len(list(run)) == 12
    assert [path.name[:14] for path in run.folder.checkpoints.iterdir()] == kept


def test_without_checkpoints_none_is_ever_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "save", lambda *_: pytest.fail("a checkpoint was written"))
    run = tasks.run(tmp_path / "run", checkpoints={"every": 0, "final": False})
    assert len(list(run)) == 12
    assert run.folder.summary()["steps"] == 12


def test_a_run_folder_holds_everything(tmp_path: Path) -> None:
    run = tasks.run(tmp_path / "run", engine={"name": "auto"})
    finish(run)
    names = {path.name for path in run.folder.path.iterdir()}
    assert names == {
        "checkpoints", "config.toml", "environment.json", "metrics.jsonl", "model.pt",
        "split.json", "summary.json",
    }  # fmt: skip
    rows = list(run.folder.rows())
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert [row["step"] for row in rows if "accuracy" in row] == [5, 10, 12]
    assert all(math.isfinite(row["discrepancy"]) for row in rows)
    summary = run.folder.summary()
    assert summary["accuracy"] == rows[-1]["accuracy"]
    assert summary["peak_discrepancy"] == max(row["discrepancy"] for row in rows)
    assert summary["messages"] == 12
    assert summary["bytes"] == 3 * 4 * run._simulation.workers.params.shape[1] + 3 * 4 * 13
    environment = json.loads(run.folder.environment_path.read_text())
    assert environment["torch"] == torch.__version__
    assert environment["seed"] == 0
    stored = parse(read(run.folder.config_path))
    assert stored.engine.name != "auto", "it is resolved"
    assert environment["engine"].startswith(f"{stored.engine.name} (")
    model = torch.load(run.folder.model_path, weights_only=True)
    assert set(model) >= {"1.weight", "2.running_mean"}


@pytest.mark.parametrize("engine", ["looped", "vmapped"])
def test_one_seed_and_one_engine_give_bit_identical_runs(tmp_path: Path, engine: str) -> None:
    one, other = (
        finish(tasks.run(tmp_path / name, engine={"name": engine})) for name in ("one", "other")
    )
    assert one == other
    different = finish(tasks.run(tmp_path / "seed", engine={"name": engine}, training={"seed": 1}))
    assert different["metrics"] != one["metrics"]


def test_an_averaged_model_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    """Finite losses and parameters, but their squares overflow."""
    run = tasks.run(tmp_path / "run", model={"batch_norm": False, "dropout": 0.0})
    rows = iter(run)
    next(rows)
    run._simulation.workers.params[1] *= 1e30
    with pytest.raises(Diverged, match="not finite at step 2"):
        next(rows)
    for line in run.folder.metrics_path.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_lost_metrics_are_noticed(tmp_path: Path) -> None:
    run = tasks.run(tmp_path / "run")
    for row in run:
        if row["step"] == 7:
            break
    run.folder.metrics_path.write_bytes(b"")
    with pytest.raises(ValueError, match="has 0 bytes"):
        tasks.run(tmp_path / "run", resume=True)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    plain = {"batch_norm": False, "dropout": 0.0}
    run = tasks.run(tmp_path / "run", training={"lr": 1e15}, checkpoints={"every": 1}, model=plain)
    with pytest.raises(
        Diverged, match=r"of worker 0.* is not finite at step \d+.*lower training.lr"
    ):
        for _ in run:
            pass
    saved = checkpoint.load(run.folder.checkpoints)
    assert saved is not None
    assert saved["workers"]["params"].isfinite().all(), "the last good checkpoint is kept"
    assert not run.folder.finished
    for row in run.folder.rows():
        assert math.isfinite(row["loss"])


def test_only_the_workers_at_fault_are_named(tmp_path: Path) -> None:
    run = tasks.run(tmp_path / "run")
    rows = iter(run)
    next(rows)
    run._simulation.workers.params[2] = float("nan")
    with pytest.raises(Diverged, match=r"the loss of worker 2 is not finite at step 2:"):
        next(rows)


def test_a_scaled_run_says_so_and_is_shorter(tmp_path: Path) -> None:
    schedule = {"name": "step", "at": [8], "warmup": 4}
    run = tasks.run(tmp_path / "run", training={"scale": 0.5}, lr_schedule=schedule)
    finish(run)
    assert run.folder.summary()["scale"] == 0.5
    assert [row["lr"] for row in run.folder.rows()] == pytest.approx(
        [0.05, 0.1, 0.1, 0.1, 0.01, 0.01]
    ), "half of 12 steps, of the warm-up and of the time to the decay"
    assert [row["step"] for row in run.folder.rows() if "accuracy" in row] == [3, 6], "5, halved"


def test_intervals_that_change(tmp_path: Path) -> None:
    """Traffic tells which interval was used; a model is sent whole when it is re-cut."""
    sent: dict[str, list[int]] = {}
    for name, sections in {"post": POST_LOCAL, "ada": SHRINKING, "lama": LAYERED}.items():
        run = tasks.run(tmp_path / name, **sections)
        finish(run)
        rows = list(run.folder.rows())
        whole = 4 * (run._simulation.workers.params.shape[1] + 13)
        sent[name] = [round(8 * (b["bytes"] - a["bytes"]) / whole) for a, b in pairwise(rows)]
        assert run._simulation.schedule.start > 0
    assert sent["post"][:4] == [8] * 4, "synchronous at first"
    assert all(each in (1, 2, 3) for each in sent["post"][4:]), "then a quarter each"
    assert sent["ada"][3] > 8, "the rest of the model, and half of the new parts"
    assert 0 in sent["lama"][4:], "parts that wait"


def test_a_budget_in_epochs(tmp_path: Path) -> None:
    """120 samples, 4 workers with batches of 5: 6 steps an epoch; 2 active workers: 12."""
    assert tasks.run(tmp_path / "all", training={"epochs": 2.5, "steps": None}).steps == 15
    half = {"fraction": 0.5}
    run = tasks.run(tmp_path / "half", training={"epochs": 1, "steps": None}, participation=half)
    assert run.steps == 12


def test_active_workers_read_the_samples_of_the_clients_drawn() -> None:
    config = tasks.config(**PERMUTED, model={"batch_norm": False, "dropout": 0.0})
    data = tasks.data()
    simulation = build.simulation(config, data, build.device(config))
    owned = build.split(config, data)
    for step in range(1, 10):
        batch = simulation._batch(step)
        for row, client in enumerate(simulation.clients(step)):
            own = data.train.inputs[owned[client]]
            assert all((own == sample).all(1).any() for sample in batch.inputs[row])
    assert len({tuple(simulation.clients(step)) for step in range(1, 10)}) == 3


def test_recorded_trajectories(tmp_path: Path, record: bool) -> None:
    """The numbers of a run change only when we mean them to: pytest --record."""
    cases = {
        "partial": {},
        "periodic": {"averaging": {"parts": 1, "partition": "whole"}},
        "between": {"averaging": {"parts": 2, "partition": "blocks"}},
        "samples, every, nesterov": {
            "averaging": {"weights": "samples", "buffers": "every"},
            "solver": {"nesterov": True, "momentum_at_averaging": "averaged"},
        },
        "half of the workers, permuted": PERMUTED,
        "most of the workers, averaged, warm-up and cosine": {
            **AVERAGED,
            "lr_schedule": {"name": "cosine", "warmup": 3},
        },
        "half of the workers, each with its own model": KEPT,
        "scaffold": CLIENTS,
        "late, shuffled, of different speed": LATE,
        "post-local": POST_LOCAL,
        "adacomm": SHRINKING,
        "fedlama": LAYERED,
    }
    path = Path(__file__).parent / "regression" / "trajectories.json"
    found = {}
    for name, sections in cases.items():
        run = tasks.run(tmp_path / name, **sections)
        finish(run)
        found[name] = [
            {key: row[key] for key in ("step", "loss", "discrepancy", "bytes", "messages")}
            for row in run.folder.rows()
        ]
    if record:
        path.write_text(json.dumps(found, indent=1) + "\n")
    expected = json.loads(path.read_text())
    assert found.keys() == expected.keys()
    for name, rows in found.items():
        for ours, theirs in zip(rows, expected[name], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-6), name


def test_sources_that_are_not_installed_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_metadata(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("partavg.own_version.version", no_metadata)
    assert environment()["partavg"] == "not installed"
