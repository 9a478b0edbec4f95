"""Finished jobs' state is taken away by a command, and nothing else."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tests.flower.federation import federation, held_back, server
from tests.flower.test_app import partavg as command
from tests.processes import Command

from partavg.flower.messages import PART
from partavg.flower.state_folders import kept_in, may_go, remove

SHORT = {"training.steps": 4, "metrics.clients_every": 4}


def partavg(*arguments: str, cwd: Path) -> tuple[int | None, str]:
    """How a command ends, and what it says."""
    run = Command(("flower", "clean", *arguments), cwd)
    out, err = run.communicate()
    return run.returncode, out + err


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nodes that took part in a run that is over, and in one that is not."""
    home = tmp_path_factory.mktemp("used")
    list(server(federation(home, {**SHORT, "flower.job": "over"}, test=held_back)))
    grid = federation(home, {**SHORT, "flower.job": "going"})
    rows = iter(server(grid, **{"flower.folder": str(home / "going")}))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    return home


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Path:
    """The state folder of a node of theirs."""
    import shutil

    return Path(shutil.copytree(used / "node0", tmp_path / "node0"))


def test_only_what_is_over_goes(home: Path) -> None:
    tried = partavg(str(home), "--dry-run", cwd=home.parent)
    assert tried[0] == 0
    assert "would remove over, client 0 (finished)" in tried[1]
    assert "would free" in tried[1]
    assert "left going, client 0 (unfinished)" in tried[1]
    assert sorted(path.name for path in home.iterdir()) == ["going", "over"]
    code, said = partavg(str(home), cwd=home.parent)
    assert code == 0
    assert "removed over, client 0 (finished): " in said
    assert "freed " in said
    assert [path.name for path in home.iterdir()] == ["going"]
    assert partavg(str(home), "--job", "going", "--force", cwd=home.parent)[0] == 0
    assert list(home.iterdir()) == []
    assert home.is_dir()


def test_a_run_goes_on_after_the_others_state_was_cleaned(tmp_path: Path) -> None:
    """The one that is not over has lost nothing."""
    for _ in server(federation(tmp_path, {**SHORT, "flower.job": "over"})):
        pass
    grid = federation(tmp_path, {**SHORT, "flower.job": "going"})
    changes = {"flower.folder": str(tmp_path / "going"), "flower.resume": True}
    rows = iter(server(grid, **changes))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    for node in range(3):
        for one in may_go(kept_in(tmp_path / f"node{node}")):
            assert one.job == "over"
            assert remove(one)
    assert not any(row["away"] for row in server(grid, **changes))


def test_age_says_what_goes(home: Path) -> None:
    week = time.time() - 7 * 86400
    for path in home.rglob("over/*/*/*"):
        os.utime(path, (week, week))
    assert "removed" not in partavg(str(home), "--older-than", "8d", cwd=home.parent)[1]
    assert "removed over" in partavg(str(home), "--older-than", "6d", cwd=home.parent)[1]


def test_what_a_process_is_using_stays_even_by_force(home: Path) -> None:
    (one,) = kept_in(home, "going")
    with FileLock(one.folder / "lock"):
        code, said = partavg(str(home), "--force", cwd=home.parent)
    assert code == 0
    assert "left going, client 0: a process is using it" in said
    assert one.folder.exists()


def test_what_is_not_ours_is_never_touched(home: Path, tmp_path: Path) -> None:
    (over,) = kept_in(home, "over")
    (over.folder / "notes.txt").write_text("mine")
    precious = tmp_path / "elsewhere" / "client-0" / over.folder.name
    precious.mkdir(parents=True)
    (precious / "finished").touch()
    (precious / "step.pt").write_text("mine")
    (home / "linked").symlink_to(precious.parents[1])
    (home / "over" / "client-1").symlink_to(precious.parent)
    assert partavg(str(home), "--force", cwd=home.parent)[0] == 0
    assert [path.name for path in over.folder.iterdir()] == ["notes.txt"]
    assert (precious / "step.pt").read_text() == "mine"
    assert (precious / "finished").exists()


def test_what_an_earlier_version_kept_goes_only_by_force(tmp_path: Path) -> None:
    old = tmp_path / "state" / "fashion"
    old.mkdir(parents=True)
    (old / f"step-000000001-{'0' * 64}.pt").write_bytes(b"x" * 1000)
    code, said = partavg("state", cwd=tmp_path)
    assert (code, old.exists()) == (0, True)
    assert "left fashion (of an earlier version): 1 kB; --force removes it" in said
    assert (
        "removed fashion (of an earlier version): 1 kB"
        in partavg("state", "--force", cwd=tmp_path)[1]
    )
    assert not old.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere",), "nowhere is no folder: name the state-dir of a node"),
        (("full",), "full holds nothing that a client keeps: name the state-dir"),
        (("empty", "--older-than", "7 weeks"), "'7 weeks' is no age: it is a number"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments: Any, sentence: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    code, err = command("flower", "clean", *arguments, cwd=tmp_path)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err


def test_another_job_is_named(home: Path) -> None:
    with pytest.raises(ValueError, match="holds nothing of job 'gone': there are going, over"):
        kept_in(home, "gone")


@pytest.mark.parametrize("how", ["listen", "average", "none"])
def test_who_rests_at_the_end_hears_that_it_is_over(tmp_path: Path, how: str) -> None:
    changes = {
        "participation.fraction": 0.67, "participation.every": 4, "averaging.buffers": "every",
        "participation.redistribution": how, "training.steps": 12, "averaging.parts": 2,
        "metrics.evaluate_every": 0,
    }  # fmt: skip
    grid = federation(tmp_path, changes)
    *_, row = server(grid)
    assert (row["stage"], len(row["clients"])) == ("end", 2)
    kept = [one for node in range(3) for one in kept_in(tmp_path / f"node{node}")]
    assert [one.state for one in kept] == ["finished"] * 3
    _, asked, reply = grid.log[-1]
    assert PART not in asked.content, "no numbers travel for it"
    assert PART not in reply.content


def test_a_client_that_is_gone_at_the_end_keeps_its_state(tmp_path: Path) -> None:
    grid = federation(tmp_path, {"training.steps": 4, "flower.patience": 0.0})
    for row in server(grid):
        grid.gone = {100} if row["step"] == 3 else grid.gone
    assert [kept_in(tmp_path / f"node{n}")[0].state for n in range(2)] == ["unfinished", "finished"]


def test_a_run_that_goes_on_is_not_over(tmp_path: Path) -> None:
    """Ended early by a function, it is over as well."""
    grid = federation(tmp_path, {"training.steps": 9, "metrics.evaluate_every": 0})
    for row in server(grid, stop=lambda row: bool(row["step"] == 2)):
        (one,) = kept_in(tmp_path / "node1")
        assert (one.state == "finished") == (row["stage"] == "end")
