"""`partavg new`: a start that runs as it is, and overwrites nothing."""

import json
from pathlib import Path

from tests.cli.program import partavg

FILES = ("recipe.toml", "own.py")


def test_it_can_be_compared_at_once(tmp_path: Path) -> None:
    said = partavg("new", "mine", cwd=tmp_path).stdout
    assert said.splitlines()[-1] == "edit them, or at once: partavg compare mine"
    lines = [line for name in FILES for line in (tmp_path / "mine" / name).read_text().splitlines()]
    assert len(lines) <= 40
    done = partavg("compare", "mine", "--set", "training.steps=20", "--out", "runs", cwd=tmp_path)
    assert "partial averaging ended" in done.stdout
    summary = json.loads((tmp_path / "runs" / "partial-seed0" / "summary.json").read_text())
    extra = (tmp_path / "mine" / "recipe.toml").read_text().rpartition(":")[2].split('"')[0]
    assert extra in summary, "its metric is measured"


def test_it_overwrites_nothing_without_force(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("mine\n")
    said = partavg("new", ".", cwd=tmp_path, code=2).stderr
    assert said == "partavg: own.py is there already: use another folder, or --force\n"
    assert (tmp_path / "own.py").read_text() == "mine\n"
    assert not (tmp_path / "recipe.toml").exists(), "nothing was written"
    partavg("new", ".", "--force", cwd=tmp_path)
    assert "Net" in (tmp_path / "own.py").read_text()


def test_a_folder_without_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = partavg("run", "empty", cwd=tmp_path, code=2).stderr
    assert said == (
        "partavg: empty is a folder without a recipe.toml: `partavg new empty` writes one\n"
    )
    (tmp_path / "demo").mkdir()
    small = ("--set", "training.steps=1", "--set", "training.workers=2")
    partavg("run", "demo", *small, "--out", "run", cwd=tmp_path)


def test_a_plan_counts_your_own_model(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def net(*, width: int = 10): return nn.Linear(99, width)\n"
        "def other(shape, classes): return nn.Linear(*shape, classes)\n"
    )
    rest = ("--step-ms", "9", "--bandwidth", "1Gbit", "--workers", "4")
    said = partavg("plan", "--model", "net.py:net", *rest, cwd=tmp_path).stdout
    assert "net.py:net: 1,000 parameters" in said
    said = partavg("plan", "--model", "net.py:other", *rest, cwd=tmp_path, code=2).stderr
    assert "depends on the data: count its parameters and give --parameters" in said
    said = partavg("plan", "--model", "net.py:nett", *rest, cwd=tmp_path, code=2).stderr
    assert "has no 'nett': did you mean 'net'?" in said
