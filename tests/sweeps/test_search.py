"""Which settings are tried, which go on, which are chosen; with results that are made up."""

import json
from pathlib import Path

import pytest

from partavg import recipe as recipes
from partavg.sweeps.outcome import note_diverged
from partavg.sweeps.plan import Sweep, grid_around
from partavg.sweeps.runner import Sweeping, Task
from partavg.sweeps.search import Halving, Listed, best
from partavg.sweeps.space import axes_of

STEPS = 90


def sweep(out: Path, *grids: str, **options: object) -> Sweep:
    demo = recipes.load("demo", [f"training.steps={STEPS}", "metrics.evaluate_every=5"])
    schemes = ("periodic", "partial")
    return Sweep(demo, schemes, axes_of(grids or ["training.lr=0.1,0.2,0.4"]), 2, out, **options)


class Pretended:
    """Trains nothing: accuracy is a function of scheme, rate and seed."""

    def __init__(self, accuracy):
        self.accuracy, self.trained = accuracy, []

    def __call__(self, task: Task) -> None:
        path, training = task.entry.folder.path, task.entry.config.training
        self.trained.append((task.entry.scheme, training.lr, training.seed, task.until))
        value = self.accuracy(task.entry.scheme, training.lr)
        if value is None:
            note_diverged(task.entry, "too fast")
            return
        path.mkdir(parents=True, exist_ok=True)
        (path / "environment.json").write_text('{"started": 0}')
        (path / "config.toml").touch()
        step = task.until or STEPS
        with (path / "metrics.jsonl").open("a") as rows:
            rows.write(json.dumps({"step": step, "accuracy": value}) + "\n")
        if task.until is None:
            summary = {"steps": STEPS, "accuracy": value}
            (path / "summary.json").write_text(json.dumps(summary))


def test_each_scheme_is_tested_with_its_own_best_settings_and_fresh_seeds(tmp_path: Path):
    planned = sweep(tmp_path)
    sweeping = Sweeping(planned, Listed(planned))
    best_rate = {"periodic": 0.1, "partial": 0.4}
    train = Pretended(lambda scheme, lr: 1 - abs(lr - best_rate[scheme]))
    sweeping.work(train)
    tuned = [one for one in train.trained if one[2] == 0]
    tests = [one for one in train.trained if one[2] != 0]
    assert len(tuned) == 6
    assert sorted(tests) == [
        ("partial", 0.4, 1, None), ("partial", 0.4, 2, None),
        ("periodic", 0.1, 1, None), ("periodic", 0.1, 2, None),
    ]  # fmt: skip
    again = Pretended(lambda scheme, lr: 0.0)
    sweeping.work(again)
    assert again.trained == [], "what is done is not done again"


def test_validation_samples_are_held_out_of_tuning_runs_only(tmp_path: Path):
    planned = sweep(tmp_path, validation=0.2)
    point = planned.points[0]
    assert planned.tuning("partial", point).training.validation == 0.2
    assert all(e.config.training.validation == 0 for e in planned.tests("partial", point))


def test_settings_that_diverge_are_never_chosen(tmp_path: Path):
    planned = sweep(tmp_path)
    sweeping = Sweeping(planned, Listed(planned))
    sweeping.work(Pretended(lambda scheme, lr: None if lr > 0.1 else 0.3))
    assert all(dict(sweeping.chosen(s).trial.point)["training.lr"] == 0.1 for s in planned.schemes)
    other = sweep(tmp_path / "all")
    lost = Sweeping(other, Listed(other))
    lost.work(Pretended(lambda scheme, lr: None))
    assert lost.chosen("partial") is None
    assert lost.tests("partial") == []


def test_of_equal_settings_the_first_is_chosen(tmp_path: Path):
    planned = sweep(tmp_path)
    Sweeping(planned, Listed(planned)).work(Pretended(lambda scheme, lr: 0.5))
    chosen = best(Listed(planned).tried("partial"))
    assert dict(chosen.trial.point)["training.lr"] == 0.1


def test_halving_lets_a_third_go_on_from_where_they_are(tmp_path: Path):
    rates = [k / 100 for k in range(1, 10)]
    planned = sweep(tmp_path, f"training.lr={','.join(map(str, rates))}", search="halving")
    search = Halving(planned, STEPS, 5)
    assert search.rungs() == [(9, 30), (3, STEPS)]
    train = Pretended(lambda scheme, lr: lr)
    Sweeping(planned, search).work(train)
    partial = [
        (lr, until) for scheme, lr, seed, until in train.trained if (scheme, seed) == ("partial", 0)
    ]
    assert partial == [(lr, 30) for lr in rates] + [(lr, None) for lr in (0.07, 0.08, 0.09)]
    assert dict(best(search.tried("partial")).trial.point)["training.lr"] == 0.09
    assert search.work("partial") == pytest.approx((9 * 30 + 3 * 60) / 90)


def test_what_stopped_early_in_halving_is_not_chosen_though_it_was_better_then(tmp_path: Path):
    planned = sweep(tmp_path, "training.lr=0.1,0.2,0.3,0.4", search="halving")
    search = Halving(planned, STEPS, 5)
    Sweeping(planned, search).work(Pretended(lambda scheme, lr: 1 - lr))
    assert [one.trial.until for one in search.tried("partial")] == [None, None, 30, 30]


@pytest.mark.parametrize(
    ("grids", "options", "sentence"),
    [
        (["training.rate=0.1"], {}, "training.rate"),
        (["training.lr=fast"], {}, "valid number"),
        (["training.lr=-1.0"], {}, "greater than 0"),
        (["averaging.parts=2,4"], {}, "which sets it"),
        (["training.lr=0.1"], {"validation": 0.0}, "validation 0"),
        (["training.lr=0.1"], {"budget": 1}, "less than one for each"),
        (["training.lr=uniform(0.1, 1)"], {}, "--budget"),
        (["training.lr=uniform(0.1, 1)"], {"search": "optuna"}, "--budget"),
    ],
)
def test_what_cannot_be_swept_is_said_before_anything_runs(tmp_path, grids, options, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        sweep(tmp_path, *grids, **options).check()
    assert "\n" not in str(caught.value)


def test_a_folder_keeps_to_its_sweep(tmp_path: Path):
    sweep(tmp_path).write()
    sweep(tmp_path).check_same()
    with pytest.raises(ValueError, match="holds a sweep with grid"):
        sweep(tmp_path, "training.lr=0.1").check_same()
    (tmp_path / "sweep.json").write_text("[")
    with pytest.raises(ValueError, match="damaged"):
        sweep(tmp_path).check_same()


def test_values_around_a_setting():
    demo = recipes.load("demo")
    assert grid_around(demo, "training.lr", (0.5, 1, 2)) == "training.lr=0.0075,0.015,0.03"
    with pytest.raises(ValueError, match=r"unknown key 'training\.rl'"):
        grid_around(demo, "training.rl", (1,))
    with pytest.raises(ValueError, match="no values around"):
        grid_around(demo, "model.name", (1,))
