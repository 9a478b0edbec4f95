import json
import math
from ast import literal_eval
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from tests import tasks

from partavg import build, checkpoint
from partavg.run import Diverged, Run
from partavg.tables import parse, read


def finish(run: Run) -> dict[str, bytes]:
    """Train to the end; everything that must be the same for the same run."""
    for _ in run:
        pass
    return outcome(run.folder.path)


def outcome(folder: Path) -> dict[str, bytes]:
    state = torch.load(folder / "model.pt", weights_only=True)
    saved = checkpoint.load(folder / "checkpoints")
    assert saved is not None
    tensors = {**state, **{k: v for k, v in saved["workers"].items() if torch.is_tensor(v)}}
    tensors |= saved["workers"]["memory"]
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("seconds")
    return {
        "metrics": (folder / "metrics.jsonl").read_bytes(),
        "config": (folder / "config.toml").read_bytes(),
        "summary": json.dumps(summary).encode(),
        **{name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
    }


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
    assert environment["engine"].startswith(("looped (", "vmapped ("))
    stored = parse(read(run.folder.config_path))
    assert stored.engine.name in ("looped", "vmapped"), "auto is resolved"
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


EVERYBODY = {}
PERMUTED = {"participation": {"fraction": 0.5, "every": 3}}
AVERAGED = {"participation": {"fraction": 0.75, "every": 4, "redistribution": "average"}}
KEPT = {"participation": {"fraction": 0.5, "every": 2, "redistribution": "none"}}


NOVA = {"name": "fednova", "momentum": None, "weight_decay": None, "decay": None}
CLIENTS = {**PERMUTED, "solver": {"name": "scaffold", "momentum": None, "weight_decay": None,
                                  "decay": None, "base": {"momentum": 0.5}}}  # fmt: skip
LATE = {
    "averaging": {"delay": 2, "shuffle": True},
    "pace": {"name": "drawn", "least": 2, "most": 4},
}
POST_LOCAL = {"adapt": {"name": "post_local", "until": 5}}
SHRINKING = {"adapt": {"name": "adacomm", "block": 3}}
LAYERED = {"adapt": {"name": "fedlama"}, "averaging": {"partition": "layer", "interval": 2}}


@cache
def uninterrupted(sections: str) -> dict[str, bytes]:
    """How a run ends that nobody stops."""
    with TemporaryDirectory() as folder:
        return finish(tasks.run(Path(folder) / "whole", **literal_eval(sections)))


@pytest.mark.parametrize("stop", [1, 2, 3, 7, 11])
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize(
    "sections",
    [EVERYBODY, PERMUTED, AVERAGED, KEPT, CLIENTS, LATE, POST_LOCAL, SHRINKING, LAYERED],
    ids=range(9),
)
def test_a_run_that_stopped_anywhere_resumes_to_the_same_end(
    tmp_path: Path, stop: int, saved: bool, sections: dict
) -> None:
    """With a checkpoint of the last step (Ctrl-C), or only an older one (killed)."""
    expected = uninterrupted(repr(sections))
    broken = tasks.run(tmp_path / "broken", **sections)
    for row in broken:
        if row["step"] == stop:
            break
    if saved:
        broken.save()
    resumed = tasks.run(tmp_path / "broken", resume=True, **sections)
    assert resumed.step == (stop if saved else stop // 3 * 3)
    assert finish(resumed) == expected


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_metrics_that_come_late_are_the_same(tmp_path: Path, stop: int) -> None:
    """As on a GPU, which goes on while the host reads."""
    expected = uninterrupted("{}")
    late = tasks.run(tmp_path / "late")
    late.lag = 2
    assert [row["step"] for row in late] == list(range(1, 13))
    assert outcome(tmp_path / "late") == expected
    broken = tasks.run(tmp_path / "broken")
    broken.lag = 2
    for row in broken:
        if row["step"] == stop:
            break
    broken.save()
    resumed = tasks.run(tmp_path / "broken", resume=True)
    assert resumed.step >= stop
    assert finish(resumed) == expected


def test_a_loss_that_is_seen_late_is_blamed_on_its_step(tmp_path: Path) -> None:
    run = tasks.run(tmp_path / "run", training={"lr": 1e30}, checkpoints={"every": 0})
    run.lag = 2
    with pytest.raises(Diverged, match="not finite at step 1:"):
        for _ in run:
            pass


def test_a_damaged_checkpoint_costs_steps_but_not_the_result(tmp_path: Path) -> None:
    expected = uninterrupted("{}")
    broken = tasks.run(tmp_path / "broken")
    for row in broken:
        if row["step"] == 8:
            break
    newest = max((tmp_path / "broken" / "checkpoints").glob("step-*"))
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="damaged"):
        resumed = tasks.run(tmp_path / "broken", resume=True)
    assert resumed.step == 3
    assert finish(resumed) == expected


def test_resuming_before_the_first_checkpoint_starts_again(tmp_path: Path) -> None:
    expected = finish(tasks.run(tmp_path / "whole"))
    tasks.run(tmp_path / "broken").folder.environment_path.unlink()
    assert finish(tasks.run(tmp_path / "broken", resume=True)) == expected
    assert (tmp_path / "broken" / "environment.json").exists()
    assert finish(tasks.run(tmp_path / "new", resume=True)) == expected, "nothing there: start"


def test_a_run_killed_while_it_finished_finishes_again(tmp_path: Path) -> None:
    expected = finish(tasks.run(tmp_path / "run"))
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "model.pt").unlink()
    assert finish(tasks.run(tmp_path / "run", resume=True)) == expected


def test_finished_and_unfinished_runs_are_not_overwritten(tmp_path: Path) -> None:
    broken = tasks.run(tmp_path / "broken")
    next(iter(broken))
    with pytest.raises(ValueError, match=r"holds an unfinished run at step 0: use --resume"):
        tasks.run(tmp_path / "broken")
    expected = finish(tasks.run(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"holds a finished run: use --force to overwrite"):
        tasks.run(tmp_path / "run")
    assert outcome(tmp_path / "run") == expected
    assert finish(tasks.run(tmp_path / "run", force=True)) == expected
    with pytest.raises(ValueError, match="cannot fill"):
        tasks.run(tmp_path / "run", force=True, averaging={"interval": 99})
    assert outcome(tmp_path / "run") == expected, "a mistake loses nothing"


def test_resuming_with_another_recipe_is_refused(tmp_path: Path) -> None:
    tasks.run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"was started with another training\.lr"):
        tasks.run(tmp_path / "run", resume=True, training={"lr": 0.2})
    for engine in ({"name": "looped"}, {"chunk": 2}, {"device": "cuda:7"}):
        with pytest.raises(ValueError, match=r"was started with another engine\."):
            tasks.run(tmp_path / "run", resume=True, engine=engine)
    assert tasks.run(tmp_path / "run", resume=True, engine={"name": "auto"}).config.engine.name == (
        "vmapped"
    )


@pytest.mark.parametrize(
    "engine",
    [
        {"name": "looped", "chunk": 4},
        {"name": "auto", "chunk": 99},
        {"name": "vmapped", "chunk": 99},
    ],
)
def test_the_same_recipe_can_always_be_resumed(tmp_path: Path, engine: dict) -> None:
    tasks.run(tmp_path / "run", engine=engine)
    resumed = tasks.run(tmp_path / "run", resume=True, engine=engine)
    assert resumed.config.engine.device == "cpu", "auto is resolved"


def test_what_is_not_a_run_is_not_touched(tmp_path: Path) -> None:
    theirs = tmp_path / "run" / "checkpoints" / "theirs.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("precious")
    for resume in (True, False):
        with pytest.raises(ValueError, match="checkpoints would be overwritten"):
            tasks.run(tmp_path / "run", resume=resume)
    finish(tasks.run(tmp_path / "run", force=True))
    assert theirs.read_text() == "precious"


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
