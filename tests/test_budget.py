"""Runs that go on beyond the end they were given."""

from pathlib import Path

import pytest
from tests import tasks
from tests.tasks import AVERAGED, CLIENTS, EVERYBODY, KEPT, LATE, LAYERED, SHRINKING, finish

from partavg import register
from partavg.config_toml import parse
from partavg.recipes.files import read
from partavg.registry import table

EVEN = {"metrics": {"evaluate_every": 4}}
LONG = {"training": {"steps": 20}}


@pytest.mark.parametrize(
    "sections", [EVERYBODY, AVERAGED, KEPT, CLIENTS, LATE, SHRINKING, LAYERED], ids=range(7)
)
def test_a_finished_run_goes_on_as_if_it_had_had_the_budget_from_the_start(
    tmp_path: Path, sections: dict
) -> None:
    expected = finish(tasks.run(tmp_path / "whole", **sections, **EVEN, **LONG))
    finish(tasks.run(tmp_path / "run", **sections, **EVEN))
    longer = tasks.run(tmp_path / "run", resume=True, **sections, **EVEN, **LONG)
    assert longer.step == 12
    assert finish(longer) == expected
    assert parse(read(tmp_path / "run" / "config.toml")).training.steps == 20


def test_an_evaluation_of_the_old_end_stays(tmp_path: Path) -> None:
    """It was made because that step was the last; all else is as with the budget from the start."""
    whole = tasks.run(tmp_path / "whole", **LONG)
    finish(whole)
    finish(tasks.run(tmp_path / "run"))
    longer = tasks.run(tmp_path / "run", resume=True, **LONG)
    finish(longer)
    rows, expected = list(longer.folder.rows()), list(whole.folder.rows())
    assert [row["step"] for row in rows if "accuracy" in row] == [5, 10, 12, 15, 20]
    for key in ("accuracy", "test_loss"):
        del rows[11][key]
    assert rows == expected


def test_killed_on_its_way_it_is_a_run_to_resume(tmp_path: Path) -> None:
    expected = finish(tasks.run(tmp_path / "whole", **EVEN, **LONG))
    finish(tasks.run(tmp_path / "run", **EVEN))
    model = (tmp_path / "run" / "model.pt").read_bytes()
    for stop in (13, 17):
        for row in tasks.run(tmp_path / "run", resume=True, **EVEN, **LONG):
            if row["step"] == stop:
                break
        assert not (tmp_path / "run" / "summary.json").exists()
        assert (tmp_path / "run" / "model.pt").read_bytes() == model, "until there is a new one"
    with pytest.raises(ValueError, match="a budget of 20 steps, 12 are fewer"):
        tasks.run(tmp_path / "run", resume=True, **EVEN)
    assert finish(tasks.run(tmp_path / "run", resume=True, **EVEN, **LONG)) == expected


def test_killed_before_its_config_was_written_it_is_at_its_old_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = finish(tasks.run(tmp_path / "run", **EVEN))
    monkeypatch.setattr("partavg.folder.write_text", _killed)
    with pytest.raises(KeyboardInterrupt):
        tasks.run(tmp_path / "run", resume=True, **EVEN, **LONG)
    monkeypatch.undo()
    assert finish(tasks.run(tmp_path / "run", resume=True, **EVEN)) == expected
    assert finish(tasks.run(tmp_path / "run", resume=True, **EVEN, **LONG)) == finish(
        tasks.run(tmp_path / "whole", **EVEN, **LONG)
    )


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_unfinished_run_takes_a_larger_budget_too(tmp_path: Path) -> None:
    expected = finish(tasks.run(tmp_path / "whole", **LONG))
    for row in tasks.run(tmp_path / "run"):
        if row["step"] == 7:
            break
    assert finish(tasks.run(tmp_path / "run", resume=True, **LONG)) == expected


def test_budgets_in_epochs(tmp_path: Path) -> None:
    """6 steps of 20 samples are an epoch of 120: 2 epochs are the 12 steps that it had."""
    epochs = {"training": {"steps": None, "epochs": 2.0}}
    before = finish(tasks.run(tmp_path / "run"))
    assert finish(tasks.run(tmp_path / "run", resume=True, **epochs)) == before, "the same budget"
    epochs["training"]["epochs"] = 3.0
    longer = tasks.run(tmp_path / "run", resume=True, **epochs)
    finish(longer)
    assert longer.step == 18
    assert longer.config.training.steps is None


def test_what_depends_on_the_budget_is_refused(tmp_path: Path) -> None:
    cosine = {"lr_schedule": {"name": "cosine", "floor": 0.5}}
    before = finish(tasks.run(tmp_path / "run", **cosine))
    with pytest.raises(
        ValueError,
        match=r"lr_schedule\.name = 'cosine' depends on the budget: with the larger one step 2 "
        r"would have had the learning rate 0\.09969, and not 0\.09915; begin again",
    ):
        tasks.run(tmp_path / "run", resume=True, **cosine, **LONG)
    assert tasks.outcome(tmp_path / "run") == before


def test_decays_that_depend_on_the_budget_are_refused_where_an_interval_heeds_them(
    tmp_path: Path,
) -> None:
    @register("lr_schedule", "last_step")
    def last_step(base, steps, lengths):
        return table("lr_schedule")["step"](base, steps, lengths, at=(float(steps),))

    try:
        sections = {"lr_schedule": {"name": "last_step"}, "adapt": {"name": "post_local"}}
        finish(tasks.run(tmp_path / "run", **sections))
        with pytest.raises(ValueError, match=r"adapt\.name = 'post_local' looks at the decays"):
            tasks.run(tmp_path / "run", resume=True, **sections, **LONG)
        finish(tasks.run(tmp_path / "other", lr_schedule={"name": "last_step"}))
        tasks.run(tmp_path / "other", resume=True, lr_schedule={"name": "last_step"}, **LONG)
    finally:
        del table("lr_schedule")["last_step"]


def test_a_run_without_its_last_checkpoint_cannot_go_on(tmp_path: Path) -> None:
    bare = {"checkpoints": {"final": False}}
    finished = tasks.run(tmp_path / "run", **bare)
    list(finished)
    with pytest.raises(ValueError, match=r"kept no checkpoint .* checkpoints\.final = true"):
        tasks.run(tmp_path / "run", resume=True, **bare, **LONG)
    before = finish(tasks.run(tmp_path / "damaged"))
    saved = next((tmp_path / "damaged" / "checkpoints").glob("step-*"))
    whole = saved.read_bytes()
    saved.write_bytes(b"garbage")
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(ValueError, match="no checkpoint that is whole"),
    ):
        tasks.run(tmp_path / "damaged", resume=True, **LONG)
    saved.write_bytes(whole)
    assert tasks.outcome(tmp_path / "damaged") == before, "a refusal loses nothing"


FROZEN = {"averaging": {"buffers": "frozen", "freeze_at": 0.5}}


def test_statistics_that_were_frozen_at_a_share_of_the_budget_are_refused_with_a_larger_one(
    tmp_path: Path,
) -> None:
    finish(tasks.run(tmp_path / "run", **FROZEN))
    kept = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="statistics would have been frozen later; begin again"):
        tasks.run(tmp_path / "run", resume=True, **FROZEN, **LONG)
    assert kept == {path: path.read_bytes() for path in kept}, "nothing is lost"


def test_stopped_before_or_after_they_are_frozen_a_run_goes_on(tmp_path: Path) -> None:
    expected = finish(tasks.run(tmp_path / "whole", **FROZEN))
    for stop in (4, 6, 8):
        for row in tasks.run(tmp_path / f"at{stop}", **FROZEN):
            if row["step"] == stop:
                break
        assert finish(tasks.run(tmp_path / f"at{stop}", resume=True, **FROZEN)) == expected
