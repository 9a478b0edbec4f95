"""Optuna's studies: one for each scheme of each sweep, and no run of theirs is missing."""

from pathlib import Path
from shutil import rmtree

import pytest
from tests.sweeps.test_search import Pretended, sweep

from partavg.sweeps.optuna_search import OptunaSearch
from partavg.sweeps.plan import Sweep
from partavg.sweeps.runner import Sweeping


def of_four(out: Path) -> Sweep:
    planned = sweep(out, "training.lr=loguniform(0.1, 0.8)", search="optuna", budget=4)
    planned.write()
    return planned


def worked(planned: Sweep, storage: str | None = None) -> tuple[Sweeping, Pretended]:
    sweeping = Sweeping(planned, OptunaSearch(planned, storage))
    train = Pretended(lambda scheme, lr: lr)
    sweeping.work(train)
    return sweeping, train


def test_sweeps_of_one_recipe_in_one_database_are_apart(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    for out in (tmp_path / "one", tmp_path / "two"):
        sweeping, train = worked(of_four(out), storage)
        assert len(train.trained) == 4 + 2 * 2, "its own trials, and its tests"
        assert sweeping.chosen("partial")


def test_of_processes_that_begin_together_one_says_which_study_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = of_four(tmp_path).stored()
    looks = iter([False])  # as it was when the other looked
    late = property(lambda sweep: next(looks, sweep.path.exists()))
    monkeypatch.setattr(Sweep, "begun", late)
    assert of_four(tmp_path).stored() == first


def test_runs_that_are_gone_are_trained_again(tmp_path: Path) -> None:
    planned = of_four(tmp_path)
    before = worked(planned)[0].chosen("partial").trial
    rmtree(next((tmp_path / "tune/partial").glob("00-*")))
    sweeping, train = worked(planned)
    assert len(train.trained) == 1
    assert sweeping.chosen("partial").trial.point == before.point


def test_what_was_asked_for_when_a_process_was_killed_is_asked_again(tmp_path: Path) -> None:
    whole, killed = of_four(tmp_path / "whole"), of_four(tmp_path / "killed")
    sweeping, _ = worked(whole)
    OptunaSearch(killed)._study("partial").ask()  # and its values were not written any more
    again, train = worked(killed)
    assert len(train.trained) == 4 + 2 * 2
    assert again.chosen("partial").trial.point == sweeping.chosen("partial").trial.point


@pytest.mark.parametrize("damage", [b"{no json\n", b"\0\1\2"])
def test_a_damaged_journal_is_moved_away_and_the_sweep_goes_on(
    tmp_path: Path, damage: bytes
) -> None:
    planned = of_four(tmp_path)
    best = worked(planned)[0].chosen("partial").trial.point
    journal = tmp_path / "optuna.journal"
    journal.write_bytes(damage)
    with pytest.raises(ValueError, match=r"optuna\.journal cannot be read by Optuna \("):
        worked(planned)
    journal.unlink()
    sweeping, train = worked(planned)
    assert train.trained == []
    assert sweeping.chosen("partial").trial.point == best


@pytest.mark.parametrize("storage", ["nonsense", "sqlite:////no/such/folder/trials.db"])
def test_a_database_that_cannot_be_opened_gets_a_sentence(tmp_path: Path, storage: str) -> None:
    planned = sweep(tmp_path / "out", search="optuna", budget=4)
    with pytest.raises(ValueError, match="cannot be opened") as caught:
        OptunaSearch(planned, storage)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
