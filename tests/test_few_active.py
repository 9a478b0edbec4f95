"""Studies of few active workers run, share their runs, and go on after a kill."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.limits import seconds

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import paper_study  # noqa: E402

TINY = [
    "data.name=fashion_subset", "model.name=mlp", "model.hidden=[4]", "training.workers=8",
    "training.batch=4", "training.steps=24", "lr_schedule.warmup=2", "lr_schedule.at=[12]",
    "metrics.evaluate_every=0", "engine.name=looped",
]  # fmt: skip
IMAGES = ["images.normalize=none", "images.crop=0", "images.flip=false"]
pytestmark = pytest.mark.slow


def started(script: str, *words: str) -> subprocess.Popen[str]:
    """A study at a tiny scale."""
    settings = TINY + (IMAGES if script == "paper_study" else [])
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, f"benchmarks/{script}.py", *words, *sets]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_ways_are_swept_by_two_processes_and_after_a_kill(tmp_path: Path) -> None:
    file, out = tmp_path / "rows.csv", ["--out", str(tmp_path / "out")]
    some = ["--seeds", "3", "--schemes", "periodic,partial-listen-1,partial-rolling-permute-2"]
    first = started("participation_study", *out, *some)
    assert first.stdout
    said = first.stdout.readline()
    assert said.startswith("periodic lr=0.005: ")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    both = [started("participation_study", *out, *some, "--rows", str(file)) for _ in range(2)]
    told = [one.communicate(timeout=seconds(300))[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    runs = [line for text in told for line in text.splitlines() if line.endswith(" %")]
    assert len(runs) == len(set(runs)) == 3 * (5 + 3) - 1, "each once, but for the one before"
    lines = file.read_text().splitlines()
    assert len(lines) == 1 + 24
    assert lines[0] == "task,scheme,judged_on,lr,seed,accuracy,bytes"
    shown = started("participation_study", "--show", str(file)).communicate()[0].splitlines()
    assert [line.split(" | ")[0] for line in shown[:3]] == [
        "| periodic", "| partial-listen-1", "| partial-rolling-permute-2"
    ]  # fmt: skip
    assert all(len(line.split(" | ")) == 5 and "[" in line for line in shown[1:3])


def test_cells_of_the_paper_take_the_same_ways_and_end_when_time_is_up(tmp_path: Path) -> None:
    file, out = tmp_path / "rows.csv", ["--out", str(tmp_path / "out")]
    over = started("paper_study", *out, "--only", "handed-over/alpha0.1-active25", "--seconds", "0")
    assert over.communicate()[0] == "time is up\n"
    words = ["--only", "permuted/alpha1-active25", "--rows", str(file)]
    told = started("paper_study", *out, *words).communicate(timeout=seconds(300))[0]
    assert len(told.splitlines()) == 6
    assert len(file.read_text().splitlines()) == 7
    assert started("paper_study", *out, *words).communicate()[0] == "", "there is nothing to do"


def test_every_cell_can_be_planned_and_none_that_came_back_is_repeated(tmp_path: Path) -> None:
    known = list(paper_study.cells(tmp_path))
    names = [cell.name for cell in known]
    assert len(set(names)) == len(names)
    for cell in known:
        if cell.tuned:
            assert cell.sweep((), tmp_path).sweeping.progress().total > 0
        elif not cell.name.startswith("lists"):
            cell.runs((), tmp_path)
    (complete,) = (cell for cell in known if cell.name == "table1/cifar10-interval8")
    assert not complete.runs((), tmp_path)
    (one,) = (cell for cell in known if cell.name == "table1/imdb-interval4")
    left = [(run.scheme, run.seed) for run in one.runs((), tmp_path)]
    assert left == [("periodic", 1), ("partial", 1), ("periodic", 2), ("partial", 2)]
    assert "lists-file/alpha0.1-active25" in names
    assert not any(cell.name.startswith("lists") for cell in paper_study.cells(None))
