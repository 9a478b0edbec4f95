"""Going on with a run: what may have changed is written down, all else is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.flower.faults import fault
from tests.flower.federation import SOLVERS, assert_equal, federation, server
from tests.flower.grid import FakeGrid

from partavg.flower import resuming
from partavg.flower.run import FederatedRun
from partavg.folder import RunFolder

CHANGES = {**SOLVERS["sgd with momentum"], "training.steps": 8, "averaging.parts": 2}


def stopped(folder: Path, rows: int = 2, **changes: Any) -> tuple[FakeGrid, FederatedRun]:
    """A run that was stopped after some exchanges."""
    grid = federation(folder, {**CHANGES, **changes})
    run = server(grid)
    going = iter(run)
    for _ in range(rows):
        next(going)
    going.close()
    return grid, run


REFUSED = {
    "training.lr": 0.1,
    "training.batch": 8,
    "training.seed": 4,
    "training.workers": 2,
    "averaging.weights": "samples",
    "averaging.interval": 8,
    "participation.fraction": 0.67,
    "solver.momentum": 0.5,
    "lr_schedule.name": "cosine",
    "flower.job": "other",
    "metrics.extra": '["perplexity"]',
}


@pytest.mark.parametrize("key", REFUSED)
@fault("Runs", "resumed with another {key}", key=REFUSED)
def test_what_would_change_the_run_is_refused(tmp_path: Path, key: str) -> str:
    grid, run = stopped(tmp_path)
    before = run.folder.config_path.read_text()
    with pytest.raises(
        ValueError, match=f"was started with .*{key}.* is wanted now: put {key}"
    ) as refused:
        server(grid, **{"flower.resume": True, key: REFUSED[key]})
    assert run.folder.config_path.read_text() == before
    assert [row["step"] for row in server(grid, **{"flower.resume": True})] == [6, 8, 8]
    return f"refused: “{str(refused.value).replace(str(tmp_path), '…')}”"


@fault("Runs", "resumed with another deadline, evaluation or number of clients that must be there")
def test_what_may_change_is_written_down(tmp_path: Path) -> str:
    grid, run = stopped(tmp_path)
    new = {"flower.deadline": 77.0, "metrics.evaluate_every": 2, "flower.min_clients": 3}
    for _ in server(grid, **{"flower.resume": True, **new}):
        pass
    (line,) = (run.folder.path / resuming.CHANGES).read_text().splitlines()
    said = json.loads(line)
    assert said["after_step"] == 4
    assert said["changed"]["flower.deadline"][1] == 77.0
    assert said["changed"]["metrics.evaluate_every"] == [4, 2]
    assert said["changed"]["flower.min_clients"] == [None, 3]
    assert run.folder.settings()["flower.deadline"] == 77.0
    return "it goes on; changes.jsonl says what was changed when, config.toml what is in force"


def test_nothing_changed_is_nothing_written(tmp_path: Path) -> None:
    grid, run = stopped(tmp_path)
    for _ in server(grid, **{"flower.resume": True}):
        pass
    assert not (run.folder.path / resuming.CHANGES).exists()


def test_a_larger_budget_is_as_if_it_had_been_there_from_the_start(tmp_path: Path) -> None:
    whole = server(federation(tmp_path / "whole", {**CHANGES, "training.steps": 16}))
    expected = list(whole)
    grid, _ = stopped(tmp_path / "stopped")
    run = server(grid, **{"flower.resume": True, "training.steps": 16})
    assert [row["step"] for row in run] == [row["step"] for row in expected[2:]]
    assert_equal(run.model(), whole.model(), tolerance=0)


@pytest.mark.parametrize(
    ("changes", "wanted", "sentence"),
    [
        ({}, 6, "has a budget of 8 steps, and 6 are fewer"),
        ({"lr_schedule.name": "cosine"}, 16, "the learning rate of step 2 would have been"),
    ],
)
def test_another_budget_is_refused(
    tmp_path: Path, changes: dict[str, Any], wanted: int, sentence: str
) -> None:
    grid, _ = stopped(tmp_path, **changes)
    with pytest.raises(ValueError, match=sentence):
        server(grid, **{"flower.resume": True, "training.steps": wanted})


def test_a_run_that_has_only_its_end_left_gets_no_larger_budget(tmp_path: Path) -> None:
    grid, _ = stopped(tmp_path, rows=4)
    with pytest.raises(ValueError, match="has nothing but its end left to do"):
        server(grid, **{"flower.resume": True, "training.steps": 16})


@fault("Runs", "resumed with another minor version of partavg")
def test_another_minor_version_is_refused_and_a_patch_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    grid, run = stopped(tmp_path)
    was = run.folder.environment()["partavg"]
    for now, refused in (("9.7.1", True), (f"{was}.post1", False)):
        monkeypatch.setattr(resuming, "own_version", lambda now=now: now)
        if refused:
            with pytest.raises(
                ValueError, match=rf"started with partavg {was}, and this is 9\.7\.1"
            ):
                server(grid, **{"flower.resume": True})
        else:
            server(grid, **{"flower.resume": True})
            text = (run.folder.path / resuming.CHANGES).read_text()
            assert json.loads(text)["changed"] == {"partavg": [was, now]}
    return "refused: it says which one to install, or to begin another run; a patch is written down"


@fault("Runs", "a second server on the run folder of a living one")
def test_two_servers_in_one_folder_are_refused(tmp_path: Path) -> str:
    grid = federation(tmp_path, CHANGES)
    first = server(grid)
    going = iter(first)
    next(going)
    with pytest.raises(ValueError, match=r"another server is training in .*run: wait") as refused:
        server(grid, **{"flower.resume": True})
    assert [row["step"] for row in going] == [4, 6, 8, 8]
    assert RunFolder(tmp_path / "run").finished
    told = str(refused.value).replace(str(tmp_path), "…")
    return f"refused: “{told}”; the first goes on"


@fault("Runs", "two runs of one job at the same time, on the same nodes")
def test_two_runs_of_one_job_do_not_meet(tmp_path: Path) -> str:
    """One after each exchange of the other: both end as if they were alone."""
    alone = server(federation(tmp_path / "alone", CHANGES))
    for _ in alone:
        pass
    grid = federation(tmp_path, CHANGES)
    one, other = server(grid), server(grid, **{"flower.folder": str(tmp_path / "other")})
    rows = list(zip(one, other, strict=True))
    assert not any(row["away"] for pair in rows for row in pair)
    for run in (one, other):
        assert_equal(run.model(), alone.model(), tolerance=0)
    return "each ends as if it were alone, to the bit"
