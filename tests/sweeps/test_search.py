"""Which settings are tried, which go on, which are chosen; with results that are made up."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from partavg import recipe as recipes
from partavg.sweeps.findings import tuned
from partavg.sweeps.of_recipe import RecipeSweep, axis_around
from partavg.sweeps.runner import Sweeping, Task
from partavg.sweeps.search import Halving, Listed, best
from partavg.sweeps.space import Point, axes_of

STEPS = 90


def sweep(out: Path, *grids: str, **options: object) -> RecipeSweep:
    demo = recipes.load("demo", [f"training.steps={STEPS}", "metrics.evaluate_every=5"])
    schemes = ("periodic", "partial")
    axes = axes_of(grids or ["training.lr=0.1,0.2,0.4"])
    known = {"name": demo.name, "recipe": demo, "schemes": schemes, "axes": axes, "seeds": 2}
    return RecipeSweep(**{**known, "out": out, **options})


class Pretended:
    """Trains nothing: accuracy is a function of scheme, rate and seed."""

    def __init__(self, accuracy):
        self.accuracy, self.trained = accuracy, []

    def __call__(self, task: Task) -> None:
        path, lr, seed = task.entry.folder.path, dict(task.point)["training.lr"], task.entry.seed
        self.trained.append((task.entry.scheme, lr, seed, task.until))
        known = (task.entry.scheme, lr, seed)
        value = self.accuracy(*known[: self.accuracy.__code__.co_argcount])
        if value is None:
            task.entry.folder.note_diverged("too fast")
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
    assert planned.testing("partial", point).training.validation == 0


def test_a_recipe_that_holds_samples_out_is_tested_on_the_test_set(tmp_path: Path):
    held = recipes.load("demo", ["training.validation=0.2"])
    planned = sweep(tmp_path, recipe=held)
    assert planned.testing("partial", planned.points[0]).training.validation == 0


@pytest.mark.parametrize("search", ["listed", "halving"])
def test_settings_are_chosen_by_the_mean_of_seeds_and_tested_with_others(
    tmp_path: Path, search: str
) -> None:
    """0.4 is best in seed 0 by chance, and diverges in none; 0.2 is best in the mean."""
    by_seed = {(0.2, 0): 0.6, (0.2, 1): 0.8, (0.4, 0): 0.7, (0.4, 1): 0.5}
    train = Pretended(lambda scheme, lr, seed: by_seed.get((lr, seed), 0.1))
    planned = sweep(tmp_path, search=search, tune_seeds=2)
    made = Listed(planned) if search == "listed" else Halving(planned, STEPS, 5)
    sweeping = Sweeping(planned, made)
    sweeping.work(train)
    chosen = sweeping.chosen("partial")
    assert dict(chosen.trial.point)["training.lr"] == 0.2
    assert chosen.outcome.value == pytest.approx(0.7)
    assert {seed for _, _, seed, _ in train.trained} == {0, 1, 2, 3}
    assert sorted(e.seed for e in sweeping.tests("partial")) == [2, 3]
    assert sweeping.progress().done == sweeping.progress().total
    one = sweep(tmp_path / "one")
    alone = Sweeping(one, Listed(one))
    alone.work(train)
    assert dict(alone.chosen("partial").trial.point)["training.lr"] == 0.4


def test_settings_that_diverge_in_one_of_the_seeds_are_not_chosen(tmp_path: Path) -> None:
    planned = sweep(tmp_path, tune_seeds=2)
    train = Pretended(lambda scheme, lr, seed: None if (lr, seed) == (0.4, 0) else lr)
    sweeping = Sweeping(planned, Listed(planned))
    sweeping.work(train)
    assert dict(sweeping.chosen("partial").trial.point)["training.lr"] == 0.2
    assert ("partial", 0.4, 1, None) not in train.trained, "another seed would tell nothing more"


def test_a_budget_is_of_runs_and_not_of_settings(tmp_path: Path) -> None:
    grid = f"training.lr={','.join(str(k / 10) for k in range(1, 9))}"
    assert len(sweep(tmp_path, grid, budget=12).points) == 6
    assert len(sweep(tmp_path, grid, budget=12, tune_seeds=2).points) == 3
    with pytest.raises(ValueError, match="use 4 or more"):
        sweep(tmp_path, grid, budget=3, tune_seeds=2).check()


def test_the_edge_is_of_what_was_tried(tmp_path: Path):
    """Of six rates a budget of six runs draws three: those at the ends of these are at an edge."""
    planned = sweep(tmp_path, "training.lr=0.1,0.2,0.3,0.4,0.5,0.6", budget=6)
    sweeping = Sweeping(planned, Listed(planned))
    drawn = [dict(point)["training.lr"] for point in planned.points]
    sweeping.work(Pretended(lambda scheme, lr: lr if scheme == "partial" else -abs(lr - drawn[1])))
    known = {one.scheme: one.edges() for one in tuned(sweeping)}
    assert drawn[-1] < 0.6
    assert known["partial"] == [f"training.lr = {drawn[-1]} is the largest tried of partial"]
    assert known["periodic"] == []


def test_labels_name_the_settings_whatever_their_number(tmp_path: Path):
    planned = sweep(tmp_path, f"training.lr={','.join(str(k / 1000) for k in range(1, 102))}")
    labels = []
    Sweeping(planned, Listed(planned)).work(
        lambda task: (
            labels.append(task.label),
            task.entry.folder.note_diverged("too fast"),
        )
    )
    assert {"periodic lr=0.001", "partial lr=0.101"} <= set(labels)


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


def test_names_of_own_files_can_be_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("def one(): ...\ndef other(): ...\n")
    sweep(tmp_path / "out", "model.name=own.py:one,own.py:other").check()


@pytest.mark.parametrize(
    ("grids", "options", "sentence"),
    [
        (["training.rate=0.1"], {}, "training.rate"),
        (["lr=0.1"], {}, r"unknown key 'lr' to tune: did you mean 'training\.lr'"),
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
    little, at_most = (0.5, 1, 2), below(float("inf"))
    assert axis_around(demo, "training.lr", little, at_most).values == (0.0075, 0.015, 0.03)
    assert axis_around(demo, "training.batch", little, at_most).values == (8, 16, 32)
    with pytest.raises(ValueError, match=r"unknown key 'training\.rl'"):
        axis_around(demo, "training.rl", little, at_most)
    with pytest.raises(ValueError, match="no values around"):
        axis_around(demo, "model.name", little, at_most)
    with pytest.raises(ValueError, match="cannot be tuned: settings are compared with one budget"):
        axis_around(demo, "training.steps", little, at_most)


def test_values_around_a_share_are_shares():
    fast = recipes.load("demo", ["solver.momentum=0.9", "training.lr=0.5"])
    little = (0.5, 1, 2)
    assert axis_around(fast, "solver.momentum", little, below(1)).values == (0.8, 0.9, 0.95)
    assert axis_around(fast, "training.lr", little, below(1)).values == (0.25, 0.5, 0.75)
    assert axis_around(fast, "training.lr", little, below(2)).values == (0.25, 0.5, 1.0)
    drops = recipes.load("demo", ["model.dropout=0.5", "loss.label_smoothing=0.5"])
    for key in ("model.dropout", "loss.label_smoothing"):
        assert axis_around(drops, key, little, below(2)).values == (0.25, 0.5, 0.75)
    wide = axis_around(fast, "solver.momentum", (0.25, 0.5, 1, 2, 4), below(1)).values
    assert wide == (0.6, 0.8, 0.9, 0.95, 0.975)


def test_values_that_are_refused_are_named_with_what_made_them():
    demo = recipes.load("demo")
    with pytest.raises(
        ValueError, match=r"training\.batch = 16 cannot be tuned around itself: "
    ) as e:
        axis_around(demo, "training.batch", (0.5, 1, 2), below(20))
    assert "of 8, 16 and 32, which would be tried, 32 is refused (32 is no less)" in str(e.value)
    assert str(e.value).endswith("`partavg sweep --grid training.batch=8,16`")
    with pytest.raises(ValueError, match=r"^16 is no less$"):  # the recipe's own
        axis_around(demo, "training.batch", (0.5, 1, 2), below(10))


def below(end: float) -> Callable[[Point], None]:
    """A check of settings."""

    def check(point: Point) -> None:
        if not point[0][1] < end:
            raise ValueError(f"{point[0][1]} is no less")

    return check
