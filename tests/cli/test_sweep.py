"""`partavg sweep` as a person uses it."""

import csv
import errno
import io
import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.program import partavg, wait_for_rows
from tests.processes import Command

from partavg.cli import main

SWEEP = ("--grid", "training.lr=0.02,0.05", "--schemes", "periodic,partial", "--seeds", 2)


def found(out: Path) -> dict[str, object]:
    """All numbers of a sweep but the times it took."""
    tests = {
        path.parent.name: {k: v for k, v in json.loads(path.read_text()).items() if k != "seconds"}
        for path in sorted(out.glob("test/*/summary.json"))
    }
    return {"tried": (out / "sweep.csv").read_text(), "tests": tests}


def test_sweep(recipe: Path, tmp_path: Path) -> None:
    done = partavg("sweep", recipe, *SWEEP, "--jobs", 1, "--out", "out", cwd=tmp_path)
    for words in (
        "periodic, lr = 0.05: ",
        "% on validation samples",
        "partial seed 2: tested (8 of 8 runs)",
        "best settings",
        "Chosen on validation samples by accuracy, one seed: periodic lr = 0.0",
        "On the test set, with fresh seeds: ",
        "two seeds: no interval",
        "At one common training.lr partial − periodic would have been",
        "At an edge: training.lr = ",
        "report: out/report.html",
    ):
        assert words in done.stdout
    assert done.stdout.count("seed 2: tested") == 2, "each once"
    tuned = list((tmp_path / "out/tune").glob("*/*/summary.json"))
    assert len(tuned) == 4
    assert all(json.loads(path.read_text())["judged_on"] == "validation" for path in tuned)
    tests = list((tmp_path / "out/test").glob("*/summary.json"))
    assert {path.parent.name for path in tests} == {
        f"{scheme}-seed{seed}" for scheme in ("periodic", "partial") for seed in (1, 2)
    }
    assert not any("judged_on" in path.read_text() for path in tests)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out/sweep.csv").read_text())))
    assert len(rows) == 4
    assert [row["scheme"] for row in rows if row["chosen"] == "yes"] == ["periodic", "partial"]
    page = (tmp_path / "out/report.html").read_text()
    assert "Accuracy on validation samples against training.lr" in page
    assert "Accuracy, %, one seed; settings that diverged are left out" in page
    assert "Chosen on validation samples" in page
    partavg("report", "out", "--csv", "tests.csv", cwd=tmp_path)
    assert (tmp_path / "out/report.html").read_text() == page, "of the sweep, as it was"
    assert (tmp_path / "out/test/report.html").exists()
    table = csv.DictReader(io.StringIO((tmp_path / "tests.csv").read_text()))
    assert [row["scheme"] for row in table] == ["periodic", "partial"]
    refused = partavg("sweep", recipe, *SWEEP, "--out", "out", cwd=tmp_path, code=2)
    assert "holds a sweep: use --resume" in refused.stderr
    again = ("sweep", recipe, *SWEEP, "--seeds", 3, "--out", "out", "--resume")
    refused = partavg(*again, cwd=tmp_path, code=2)
    assert "holds a sweep with seeds = 2, and not 3" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("search", "seeds"), [("halving", 2), ("optuna", 1)])
def test_a_killed_sweep_goes_on_to_the_same_result(
    recipe: Path, tmp_path: Path, search: str, seeds: int
) -> None:
    grid = ("--grid", "training.lr=loguniform(0.01, 0.1)", "--search", search)
    grid += ("--budget", 8 * seeds, "--tune-seeds", seeds)
    long = ("--set", "training.steps=24", "--schemes", "periodic,partial", "--seeds", 1)
    arguments = ("sweep", recipe, *grid, *long, "--jobs", 1)
    partavg(*arguments, "--out", "whole", cwd=tmp_path)
    process = Command([*arguments, "--out", "out"], tmp_path, halts=24 + 12)
    tried = tmp_path / "out/tune/periodic"
    while len(list(tried.glob("*/metrics.jsonl"))) < 2:
        assert process.poll() is None, process.communicate()
    second = sorted(tried.glob("*/metrics.jsonl"))[1]
    wait_for_rows(second, 4, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    partavg(*arguments, "--out", "out", "--resume", cwd=tmp_path)
    assert found(tmp_path / "out") == found(tmp_path / "whole")


@pytest.mark.slow
def test_several_processes_share_a_sweep(recipe: Path, tmp_path: Path) -> None:
    partavg("sweep", recipe, *SWEEP, "--jobs", 1, "--out", "one", cwd=tmp_path)
    partavg("sweep", recipe, *SWEEP, "--jobs", 2, "--out", "two", cwd=tmp_path)
    assert found(tmp_path / "one") == found(tmp_path / "two")


def test_an_interrupted_sweep_says_how_to_go_on(recipe: Path, tmp_path: Path) -> None:
    arguments = ("sweep", recipe, *SWEEP, "--jobs", 1, "--set", "training.steps=80")
    process = Command([*arguments, "--out", "out"], tmp_path, halts=40)
    wait_for_rows(tmp_path / "out/tune/periodic/00-lr=0.02/metrics.jsonl", 20, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    command = errors.rpartition("continue with: partavg ")[2].split()
    assert command[0] == "sweep"
    done = partavg(*command, cwd=tmp_path)
    assert "On the test set" in done.stdout


def test_a_sweep_goes_on_with_the_recipe_that_it_had(recipe: Path, tmp_path: Path) -> None:
    held = recipe.read_text().replace("[training]", "[training]\nvalidation = 0.25")
    recipe.write_text(held)
    arguments = ("sweep", recipe, "--grid", "training.lr=0.05", "--schemes", "partial")
    arguments += ("--seeds", 1, "--jobs", 1, "--out", "out")
    partavg(*arguments, cwd=tmp_path)
    tuned = (tmp_path / "out/tune/partial/00-lr=0.05/config.toml").read_text()
    assert "validation = 0.25" in tuned, "as much as the recipe holds out"
    partavg(*arguments, "--resume", cwd=tmp_path)
    for key in ("batch", "steps"):
        recipe.write_text(held.replace(f"{key} = ", f"{key} = 1"))
        refused = partavg(*arguments, "--resume", cwd=tmp_path, code=2)
        assert f"training.{key}" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--grid", "training.rl=0.1"], "unknown key 'training.rl'"),
        (["--grid", "training.lr="], "has no value"),
        (["--grid", "training.lr=fast,slow"], "training.lr = \"fast\""),
        (["--grid", "training.batch=0,4"], "training.batch = 0"),
        (["--validation", "0"], "validation 0 leaves no samples"),
        (["--validation", "0.00001"], "no validation set"),
        (["--grid", "training.lr=uniform(0.1, 1)"], "--budget"),
        (["--search", "halving", "--set", "metrics.evaluate_every=0"], "evaluate_every = 0"),
        (["--schemes", "partial,partial"], "name each scheme once"),
        (["--seeds", "0"], "0 seeds"),
        (["--storage", "sqlite:///trials.db"], "add --search optuna"),
        (["--set", 'metrics.extra=["f1"]'], "metric 'f1' cannot be measured"),
    ],
)  # fmt: skip
def test_bad_sweeps_get_a_sentence(
    recipe: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = partavg("sweep", recipe, *arguments, cwd=tmp_path, code=2)
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists(), "nothing is left behind"


@pytest.mark.parametrize("where", ["Run", "report"])
def test_a_full_disk_is_said_with_what_goes_on(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"partavg.cli.sweeping.{where}", fail)
    monkeypatch.chdir(tmp_path)
    short = "--schemes partial --seeds 1 --set training.steps=2 --jobs 1 --out out"
    words = ["sweep", str(recipe), "--grid", "training.lr=0.1", *short.split()]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    said = done.stderr.splitlines()[-1]
    assert said.startswith("partavg: No space left on device; continue with: partavg sweep")
    assert said.endswith(" --out out --resume")


def test_compare_tunes(recipe: Path, tmp_path: Path) -> None:
    done = partavg(
        "compare", recipe, "--tune", "lr", "--schemes", "periodic,partial", "--out", "out",
        cwd=tmp_path,
    )  # fmt: skip
    assert "one seed: not evidence" in done.stdout
    rates = {path.name[3:] for path in (tmp_path / "out/tune/partial").iterdir()}
    assert rates == {"lr=0.025", "lr=0.05", "lr=0.1"}
    done = partavg("compare", recipe, "--tune", "model.name", cwd=tmp_path, code=2)
    assert "has no values around it" in done.stderr
    key = "averaging.max_weight"
    refused = ("compare", recipe, "--tune", key, "--set", f"{key}=1.0")
    done = partavg(*refused, cwd=tmp_path, code=2)
    assert "of 0.5, 1.0 and 2.0, which would be tried, 0.5 is refused (" in done.stderr
    assert f"`partavg sweep --grid {key}=1.0,2.0`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_compare_tunes_shares(recipe: Path, tmp_path: Path) -> None:
    fast = ("--set", "solver.momentum=0.9", "--schemes", "partial", "--set", "training.steps=2")
    partavg("compare", recipe, "--tune", "solver.momentum", *fast, "--out", "out", cwd=tmp_path)
    tried = {path.name[3:] for path in (tmp_path / "out/tune/partial").iterdir()}
    assert tried == {"momentum=0.8", "momentum=0.9", "momentum=0.95"}


def test_compare_tunes_several(recipe: Path, tmp_path: Path) -> None:
    keys = ("--tune", "lr", "--tune", "training.batch", "--tune", "training.lr")
    fast = ("--schemes", "partial", "--set", "training.steps=2", "--out", "out")
    partavg("compare", recipe, *keys, *fast, cwd=tmp_path)
    tried = sorted(path.name[3:] for path in (tmp_path / "out/tune/partial").iterdir())
    assert len(tried) == 9
    assert tried[0] == "lr=0.025_batch=2"
