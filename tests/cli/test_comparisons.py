"""`partavg compare` as a person uses it."""

import json
import re
import signal
from pathlib import Path

import pytest
import torch
from tests.cli.program import LONG, files, partavg, wait_for_rows
from tests.processes import Command


def test_compare(recipe: Path, tmp_path: Path) -> None:
    done = partavg(
        "compare", recipe, "--seeds", 2, "--schemes", "periodic,partial,2-parts", cwd=tmp_path
    )
    for words in (
        "engine: vmapped",
        "partial seed 1: step 12/12, loss",
        "accuracy",
        "±",
        "At the same traffic, partial averaging ended",
        "run folders: runs/compare-1",
        "report: runs/compare-1/report.html",
    ):
        assert words in done.stdout
    out = tmp_path / "runs/compare-1"
    assert len(list(out.glob("*-seed*/summary.json"))) == 6
    assert "<svg" in (out / "report.html").read_text()
    configs = [path.read_text() for path in out.glob("*/config.toml")]
    assert all('name = "vmapped"' in text for text in configs)


def test_all_runs_of_a_comparison_go_on_with_a_larger_budget(recipe: Path, tmp_path: Path) -> None:
    arguments = ("compare", recipe, "--schemes", "periodic,partial", "--out", "out")
    partavg(*arguments, cwd=tmp_path)
    done = partavg(*arguments, "--resume", "--set", "training.epochs=0.01", cwd=tmp_path, code=2)
    assert "has a budget of 12 steps, 8 are fewer" in done.stderr
    done = partavg(*arguments, "--resume", "--set", "training.steps=18", cwd=tmp_path)
    for scheme in ("periodic", "partial"):
        assert f"{scheme}: step 18/18" in done.stdout
        summary = json.loads((tmp_path / "out" / f"{scheme}-seed0" / "summary.json").read_text())
        assert summary["steps"] == 18


def test_compare_without_a_recipe_is_the_demo(tmp_path: Path) -> None:
    done = partavg("compare", "--set", "training.steps=3", cwd=tmp_path)
    assert "synchronous: step 3/3" in done.stdout
    engines = {
        re.search(r"\[engine\]\nname = .*\nchunk = .*", path.read_text())[0]
        for path in tmp_path.glob("runs/compare-1/*/config.toml")
    }
    assert len(engines) == 1, "one engine for all schemes"


@pytest.mark.slow
def test_an_interrupted_comparison_goes_on(recipe: Path, tmp_path: Path) -> None:
    arguments = ("compare", recipe, *LONG, "--schemes", "periodic,partial")
    partavg(*arguments, "--out", "whole", cwd=tmp_path)
    process = Command([*arguments, "--out", "out"], tmp_path, halts=80 + 40)
    wait_for_rows(tmp_path / "out" / "partial-seed0" / "metrics.jsonl", 20, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    command = errors.rpartition("continue with: partavg ")[2].split()
    assert command[0] == "compare"
    partavg(*command, cwd=tmp_path)
    for scheme in ("periodic-seed0", "partial-seed0"):
        assert files(tmp_path / "out" / scheme) == files(tmp_path / "whole" / scheme)
    refused = partavg(*arguments, "--out", "out", cwd=tmp_path, code=2)
    assert "holds a finished run" in refused.stderr
    other = ("--out", "out", "--resume", "--set", "training.lr=0.5")
    refused = partavg(*arguments, *other, cwd=tmp_path, code=2)
    assert "was started with another training.lr" in refused.stderr
    more = partavg(*arguments[:-1], "2-parts,periodic,partial", *other[:3], cwd=tmp_path)
    assert "2-parts: step 80/80" in more.stdout
    assert "periodic: step" not in more.stdout, "what is finished is not run again"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--schemes", "parital"], "scheme 'parital' is not known"),
        (["--seeds", "0"], "0 seeds give no run"),
        (["--schemes", "partial,3-parts"], "interval 4 cannot be cut into 3 parts"),
        (["--set", "averaging.partition=layer"], "cannot fill 4 parts"),
        (["--resume"], "--resume needs --out"),
        (["--set", "averaging.interval=8", "--set", "averaging.parts=4"],
         "averaging.parts=4 would be taken by no run: averaging.parts is what a scheme sets (pe"),
        (["--schemes", "synchronous", "--set", "averaging.interval=8"],
         "averaging.interval=8 would be taken by no run"),
        (["--set", "training.steps=8", "--set", "training.epochs=1"], "are two budgets: set one"),
        (["--set", "solver.momentum=0.5", "--set", "solver.name=scaffold"],
         "unknown key 'solver.momentum'"),
        (["--set", "model.batch_norm=true", "--set", "training.batch=1"], "more than 1 value per"),
    ],
)  # fmt: skip
def test_bad_comparisons(recipe: Path, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = partavg("compare", recipe, *arguments, cwd=tmp_path, code=2)
    assert sentence in done.stderr
    assert not (tmp_path / "runs").exists(), "nothing was started"


def test_a_scheme_that_diverges_does_not_stop_the_others(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(recipe.read_text() + "\n[schemes.wild]\ntraining.lr = 1e15\n")
    done = partavg(
        "compare", recipe, "--schemes", "periodic,wild,partial", "--set", "checkpoints.every=0",
        "--out", "o", cwd=tmp_path, code=3,
    )  # fmt: skip
    assert re.search(r"o/wild-seed0: .* is not finite at step \d+: lower training.lr = 10+\.0$",
                     done.stderr.strip())  # fmt: skip
    assert "wild diverged" in done.stdout
    assert re.search(r"wild +– +–", done.stdout)
    assert re.search(r"partial +\d\d\.\d\d ", done.stdout)
    page = (tmp_path / "o/report.html").read_text()
    assert "wild (diverged after step" in page
    assert "unfinished" not in page
    kept = json.loads((tmp_path / "o/wild-seed0/diverged.json").read_text())
    assert "is not finite at step" in kept["why"]


def test_data_that_changed_under_their_name_are_not_mixed(recipe: Path, tmp_path: Path) -> None:
    own = """
import torch
from partavg import Dataset

def points(root):
    x = torch.load(root / "points.pt")
    return Dataset((x[:80], (x[:80, 0] > 0).long()), (x[80:], (x[80:, 0] > 0).long()), classes=2)
"""
    (tmp_path / "own.py").write_text(own)
    recipe.write_text(recipe.read_text() + '[data]\nname = "own.py:points"\n')
    torch.save(torch.randn(120, 4), tmp_path / "points.pt")
    given = (recipe, "--data", ".", "--out", "out")
    partavg("compare", *given, "--schemes", "periodic,partial", cwd=tmp_path)
    grid = ("--grid", "training.lr=0.1", "--schemes", "partial", "--seeds", 1, "--jobs", 1)
    partavg("sweep", *given[:-1], "swept", *grid, cwd=tmp_path)
    torch.save(torch.randn(120, 4), tmp_path / "points.pt")
    for command in (
        ("compare", *given, "--schemes", "periodic,partial"),
        ("sweep", *given[:-1], "swept", *grid),
        ("run", *given[:-1], "out/partial-seed0", "--scheme", "partial"),
    ):
        refused = partavg(*command, "--resume", cwd=tmp_path, code=2)
        assert "was started with other training samples than there are now" in refused.stderr
        assert refused.stderr.count("\n") == 1
    done = partavg("compare", *given, "--schemes", "synchronous", cwd=tmp_path)
    assert "2 more schemes are of another task, of other data or budget" in done.stdout
    assert "against" not in done.stdout, "no scheme is compared with those of other data"


def test_comparisons_in_one_folder_are_shown_together(recipe: Path, tmp_path: Path) -> None:
    partavg("compare", recipe, "--schemes", "periodic,partial", "--out", "ov", cwd=tmp_path)
    done = partavg("compare", recipe, "--schemes", "synchronous", "--out", "ov", cwd=tmp_path)
    for scheme in ("periodic", "partial", "synchronous"):
        assert re.search(rf"^  {scheme} +\d", done.stdout, re.MULTILINE), done.stdout
    assert "partial averaging ended" in done.stdout, "the verdict is of all of them"
    page = (tmp_path / "ov/report.html").read_text()
    assert "<h1>Comparison of periodic, partial and synchronous</h1>" in page
    other = ("--schemes", "2-parts", "--set", "training.steps=4", "--out", "ov")
    done = partavg("compare", recipe, *other, cwd=tmp_path)
    assert "3 more schemes are of another task, of other data or budget" in done.stdout
    assert not re.search(r"^  partial ", done.stdout, re.MULTILINE), "not in one table"
    assert "2-parts ended with the accuracy" in done.stdout
    assert "2-parts" in (tmp_path / "ov/report.html").read_text()
    refused = partavg("run", recipe, "--out", "ov", "--force", cwd=tmp_path, code=2)
    assert "ov holds other runs, as 2-parts-seed0, and a run there would hide" in refused.stderr
    (tmp_path / "ov/report.html").write_text("my own page")
    refused = partavg("compare", recipe, *other, "--resume", cwd=tmp_path, code=2)
    assert "ov/report.html is no report of partavg" in refused.stderr
