"""Killed at any moment, nothing that was averaged is lost."""

import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from tests.flower.federation import SOLVERS, assert_equal, federation, model, server
from tests.flower.grid import FakeGrid
from tests.flower.test_faults import QUICK, turn
from tests.outside import Noisy
from tests.processes import context

from partavg import checkpoint
from partavg.flower.progress import ServerProgress
from partavg.folder import RunFolder

CHANGES = {**SOLVERS["scaffold"], "training.steps": 16}


def resume(folder: Path, wanted: int | None) -> None:
    """Train in this process, from wherever it is; soon after what is wanted wait to be killed."""
    import tests.flower.conftest  # noqa: F401

    for row in server(federation(folder, CHANGES), **{"flower.resume": True}):
        if wanted and row["step"] == wanted + 3:
            signal.pause()


def test_a_federation_killed_again_and_again_is_the_same_to_the_bit(tmp_path: Path) -> None:
    """Server and clients die together, twice; each time as soon as something was averaged."""
    run = server(federation(tmp_path / "whole", CHANGES))
    for _ in run:
        pass
    folder = RunFolder(tmp_path / "killed" / "run")
    for wanted in (2, 9, None):
        process = context.Process(target=resume, args=(tmp_path / "killed", wanted))
        process.start()
        while process.exitcode is None:
            lines = (
                folder.metrics_path.read_bytes().count(b"\n")
                if folder.exists and folder.metrics_path.exists()
                else 0
            )
            if wanted and lines >= wanted:
                process.kill()
            time.sleep(0.002)
        assert process.exitcode == (-signal.SIGKILL if wanted else 0)
    rows = list(folder.rows())
    assert [row["step"] for row in rows] == [*range(1, 17), 16]
    trained = model()
    trained.load_state_dict(torch.load(folder.model_path, weights_only=True))
    assert_equal(trained, run.model(), tolerance=0)
    assert not any(row["away"] for row in rows)


def test_a_server_that_resumes_still_knows_the_whole_model(tmp_path: Path) -> None:
    """A client that lost everything gets from it what it would have got without the stop."""
    ends = []
    for stopped in (False, True):
        folder = tmp_path / str(stopped)
        run = server(federation(folder, CHANGES))
        rows = iter(run)
        for _ in range(6):
            next(rows)
        shutil.rmtree(folder / "node0")
        if stopped:
            rows.close()
            run = server(federation(folder, CHANGES), **{"flower.resume": True})
            rows = iter(run)
        assert "does not have its state" in next(rows)["away"]["0"]
        assert all(0 in row["clients"] for row in rows)
        ends.append(run.model())
    assert_equal(*ends, tolerance=0)


def test_files_of_earlier_versions_can_be_read(tmp_path: Path) -> None:
    """What a run folder and a state folder hold, by the names that files have had all along.

    What came later may be missing in them.
    """
    run = server(federation(tmp_path, CHANGES))
    next(iter(run))
    saved = checkpoint.load(run.folder.checkpoints)
    assert saved
    assert sorted(saved) == ["digest", "metrics_length", "seconds", "server"]
    assert sorted(saved["server"]) == ["mirror", "progress", "roster"]
    first = {
        "about", "changes", "ends", "models", "part", "share", "stage", "step", "sums", "token",
        "turn",
    }  # fmt: skip
    progress = saved["server"]["progress"]
    assert first <= progress.keys()
    ServerProgress.load({name: progress[name] for name in first})
    token = run.server.progress.token
    kept = checkpoint.load(tmp_path / "node0" / "test" / "client-0" / token)
    assert kept
    assert sorted(kept) == ["last", "loss", "owner", "turn", "workers"]
    assert sorted(kept["owner"]) == ["client", "job", "node", "token"]


def test_an_order_is_carried_out_once(tmp_path: Path) -> None:
    """The same message again: the same answer, and no more steps."""
    grid: FakeGrid = federation(tmp_path, CHANGES)
    for _ in zip(range(3), server(grid), strict=False):
        pass
    client, message, reply = grid.log[-1]
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / f"node{client}").rglob("*.pt")}
    grid._deliver(message)
    again = grid.log[-1][2]
    assert again.content["part"]["part"].data == reply.content["part"]["part"].data
    assert dict(again.content["reply"]) == pytest.approx(dict(reply.content["reply"]), nan_ok=True)
    assert files == {path: path.stat().st_mtime_ns for path in files}


def test_a_damaged_state_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    run = server(federation(tmp_path, CHANGES))
    rows = [row for row, _ in zip(run, range(6), strict=False)]
    newest = max((tmp_path / "node1").rglob("step-*.pt"))
    with newest.open("r+b") as file:
        file.truncate(newest.stat().st_size // 2)
    with pytest.warns(UserWarning, match="is damaged"):
        rows = list(server(federation(tmp_path, CHANGES), **{"flower.resume": True}))
    assert "does not have its state" in rows[0]["away"]["1"]
    assert all(1 in row["clients"] for row in rows[1:])


def test_a_job_begun_anew_does_not_find_the_old_state(tmp_path: Path) -> None:
    grid = federation(tmp_path, CHANGES)
    first = server(grid)
    for _ in first:
        pass
    second = server(grid, **{"flower.folder": str(tmp_path / "second")})
    for _ in second:
        pass
    assert_equal(second.model(), first.model(), tolerance=0)


@pytest.mark.parametrize("redistribution", ["average", "permute"])
@pytest.mark.parametrize("catch_up", ["parts", "whole"])
def test_an_aggregate_draws_the_same_after_every_stop(
    tmp_path: Path, redistribution: str, catch_up: str
) -> None:
    """Also with a client that is late now and then."""
    changes = {
        **QUICK,
        "training.steps": 12,
        "averaging.buffers": "local",
        "participation.fraction": 0.67,
        "participation.every": 4,
        "participation.redistribution": redistribution,
        "flower.catch_up": catch_up,
        "flower.min_clients": 1,
    }
    ends = []
    for stopped in (False, True):
        stage = ""
        while stage != "end":
            grid = federation(tmp_path / str(stopped), changes)
            grid.fault = lambda client, message: (
                "late" if client == 0 and turn(message) in (3, 6) else None
            )
            run = server(grid, Noisy(), **{"flower.resume": True})
            rows = iter(run)
            for row in rows:
                stage = row["stage"]
                if stopped and stage != "end":
                    break
            rows.close()
        ends.append(run.model())
    assert_equal(*ends, tolerance=0)
