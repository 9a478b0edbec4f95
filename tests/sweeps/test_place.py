"""The folder of a sweep: what is in its way, and what is removed to begin again."""

from pathlib import Path

import pytest
from tests.sweeps.test_search import Pretended, sweep

from partavg.cli import sweeping
from partavg.cli.datasets import Datasets
from partavg.sweeps.claim import claim
from partavg.sweeps.place import check_free, check_no_sweep, clear
from partavg.sweeps.runner import Sweeping
from partavg.sweeps.search import Listed


@pytest.mark.parametrize("name", ["sweep.csv", "engine.toml", "optuna.journal", "helpers.log"])
def test_files_of_others_are_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    for force in (False, True):
        with pytest.raises(ValueError, match="holds no sweep: use another --out"):
            check_free(sweep(tmp_path), resume=False, force=force)


def test_a_sweep_is_not_put_into_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    (tmp_path / "environment.json").write_text('{"started": 0}')
    with pytest.raises(ValueError, match="which is a run"):
        check_free(sweep(tmp_path / "in"), resume=False, force=False)


def test_a_sweep_and_a_comparison_do_not_share_a_folder(tmp_path: Path) -> None:
    run = tmp_path / "partial-seed0"
    run.mkdir()
    (run / "config.toml").write_text("[training]\nsteps = 3\n")
    (run / "environment.json").write_text('{"started": 0}')
    with pytest.raises(ValueError, match="holds other runs, as partial-seed0, and the report of"):
        check_free(sweep(tmp_path), resume=False, force=False)
    check_no_sweep(tmp_path)
    sweep(tmp_path).write()
    with pytest.raises(ValueError, match="holds a sweep, with a report of its own: use another"):
        check_no_sweep(tmp_path)


def test_a_plan_of_somebody_else_gives_nothing_away(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"method": "bayes"}')
    with pytest.raises(ValueError, match="is no sweep of partavg"):
        check_free(sweep(tmp_path), resume=False, force=True)


def test_beginning_again_removes_the_sweep_and_nothing_else(tmp_path: Path) -> None:
    planned = sweep(tmp_path)
    planned.write()
    Sweeping(planned, Listed(planned)).work(Pretended(lambda scheme, lr: lr))
    own = ["test/notes.txt", "tune/other/mine", "tune/partial/notes.txt", "mine.csv"]
    own = [tmp_path / name for name in own]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    check_free(planned, resume=False, force=True)
    clear(planned)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(own)


def test_what_somebody_is_at_work_on_is_not_removed(tmp_path: Path) -> None:
    planned = sweep(tmp_path)
    planned.write()
    (tmp_path / "locks/left behind.lock").touch()
    check_free(planned, resume=False, force=True)
    with claim(tmp_path / "tune/partial/00-lr=0.1", tmp_path / "locks"):
        check_free(planned, resume=True, force=False)
        with pytest.raises(ValueError, match="a process is at work on the sweep"):
            check_free(planned, resume=False, force=True)


def test_who_comes_second_waits_for_the_engine_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, path = sweep(tmp_path), tmp_path / "engine.toml"
    monkeypatch.setattr(sweeping, "sleep", lambda seconds: path.write_text("of the first"))
    with claim(path, tmp_path / "locks"):
        sweeping._choose_engine(planned, Datasets(tmp_path))
    assert path.read_text() == "of the first"
