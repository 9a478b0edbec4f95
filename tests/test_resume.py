"""Runs that stop anywhere and go on to the same end; what is not overwritten on the way."""

import json
from ast import literal_eval
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests import tasks
from tests.tasks import (
    AVERAGED,
    CLIENTS,
    EVERYBODY,
    KEPT,
    LATE,
    LAYERED,
    PERMUTED,
    PERSONAL,
    POST_LOCAL,
    SHRINKING,
    finish,
    outcome,
)

from partavg.session import Diverged


@cache
def uninterrupted(sections: str) -> dict[str, bytes]:
    """How a run ends that nobody stops."""
    with TemporaryDirectory() as folder:
        return finish(tasks.run(Path(folder) / "whole", **literal_eval(sections)))


@pytest.mark.parametrize(
    "sections",
    [EVERYBODY, PERMUTED, AVERAGED, KEPT, CLIENTS, LATE, POST_LOCAL, SHRINKING, LAYERED, PERSONAL],
    ids=range(10),
)
@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_stopped_anywhere_resumes_to_the_same_end(
    tmp_path: Path, saved: bool, sections: dict
) -> None:
    """Time and again, with a checkpoint of the last step (Ctrl-C) or only an older one (killed)."""
    run = tasks.run(tmp_path / "broken", **sections)
    for stop in (1, 2, 3, 7, 11):
        for row in run:
            if row["step"] == stop:
                break
        if saved:
            run.save()
        run = tasks.run(tmp_path / "broken", resume=True, **sections)
        assert run.step == (stop if saved else stop // 3 * 3)
    assert finish(run) == uninterrupted(repr(sections))


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
    tasks.run(tmp_path / "broken").folder.config_path.unlink()
    assert finish(tasks.run(tmp_path / "broken", resume=True)) == expected, "killed as it began"
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


@pytest.mark.parametrize("side", ["train", "test"])
def test_resuming_with_other_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    finish(tasks.run(tmp_path / "run"))
    known, samples = tasks.data(), getattr(tasks.data(), side)
    other = known._replace(**{side: samples._replace(targets=samples.targets.flip(0))})
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "data", lambda: other)
        what = {"train": "training", "test": "test"}[side]
        with pytest.raises(ValueError, match=f"was started with other {what} samples than there"):
            tasks.run(tmp_path / "run", resume=True)
    path = tmp_path / "run" / "environment.json"
    before = {k: v for k, v in json.loads(path.read_text()).items() if k != "data"}
    path.write_text(json.dumps(before))
    tasks.run(tmp_path / "run", resume=True)  # of before 0.2, which did not write it down


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


@pytest.mark.parametrize(
    "name",
    ["metrics.jsonl", "config.toml", "environment.json", "report.html", "model.pt", "split.json",
     "checkpoints/theirs.txt", "tensorboard/events.out"],
)  # fmt: skip
def test_what_is_of_no_run_is_never_touched(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / "run" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("precious")
    for options in ({}, {"resume": True}, {"force": True}):
        with pytest.raises(ValueError, match=r"would be overwritten, but .* holds no run: use ano"):
            tasks.run(tmp_path / "run", **options)
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == [theirs]
    assert theirs.read_text() == "precious"


def test_a_page_of_the_user_in_a_run_is_kept_unless_forced(tmp_path: Path) -> None:
    run = tasks.run(tmp_path / "run")
    run.folder.report_path.write_text("<title>my notes</title>")
    for options in ({"resume": True}, {}):
        with pytest.raises(ValueError, match=r"report\.html is no report of partavg"):
            tasks.run(tmp_path / "run", **options)
    finish(tasks.run(tmp_path / "run", force=True))


def test_runs_do_not_hide_each_other(tmp_path: Path) -> None:
    expected = finish(tasks.run(tmp_path / "out" / "table" / "row" / "partial-seed0"))
    for force in (False, True):
        with pytest.raises(ValueError, match=r"holds other runs, as table/row/partial-seed0, and"):
            tasks.run(tmp_path / "out", force=force)
    with pytest.raises(ValueError, match=r"lies in .*partial-seed0, which is a run"):
        tasks.run(tmp_path / "out" / "table" / "row" / "partial-seed0" / "another")
    assert tasks.outcome(tmp_path / "out" / "table" / "row" / "partial-seed0") == expected
