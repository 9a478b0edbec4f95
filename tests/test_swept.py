"""`partavg.sweep`: sweeps of simulations made in Python."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import partavg

torch.manual_seed(0)
X = torch.randn(300, 4)
Y = (X[:, 0] * X[:, 1] > 0).long()
TRAIN, TEST = (X[:200], Y[:200]), (X[200:], Y[200:])


def simulation(schedule: Any, seed: int, samples: partavg.Samples, lr: float) -> partavg.Simulation:
    torch.manual_seed(seed)
    split = partavg.iid(samples.targets, workers=4, seed=seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return partavg.Simulation(
        model, F.cross_entropy, samples, split, schedule=schedule, lr=lr, seed=seed, engine="looped"
    )


GIVEN: dict[str, Any] = {
    "simulation": simulation, "until": 20, "grid": {"lr": [0.01, 0.5]}, "interval": 4,
    "train": TRAIN, "test": TEST, "seeds": 2,
}  # fmt: skip


def numbers(found: partavg.Swept) -> list[Any]:
    """All that was found but times."""
    tests = [
        [{k: v for k, v in one.items() if k != "seconds"} for one in result.summaries]
        for result in found.tests.results
    ]
    return [found.settings, found.tried, found.said, tests]


def test_each_scheme_has_its_own_best_settings_and_fresh_seeds(tmp_path: Path) -> None:
    found = partavg.sweep(**GIVEN, out=tmp_path / "out")
    assert set(found.settings) == {"periodic", "partial", "synchronous"}
    for scheme, settings in found.settings.items():
        reached = {one["lr"]: one["accuracy"] for one in found.tried if one["scheme"] == scheme}
        assert reached[settings["lr"]] == max(reached.values())
    assert [(r.scheme, r.seeds) for r in found.tests.results] == [
        ("periodic", (1, 2)), ("partial", (1, 2)), ("synchronous", (1, 2)),
    ]  # fmt: skip
    assert "two seeds: no interval" in repr(found)
    assert repr(found).splitlines()[-1] == f"report: {tmp_path / 'out/report.html'}"
    assert "<table>" in found._repr_html_()
    page = (tmp_path / "out/report.html").read_text()
    assert "Settings tried: accuracy against traffic" in page


def test_runs_are_those_that_compare_makes(tmp_path: Path) -> None:
    """A test is the same run as one of `compare` with those settings and that seed."""
    found = partavg.sweep(**{**GIVEN, "grid": {"lr": [0.5]}}, out=tmp_path / "swept")
    same = partavg.compare(
        lambda schedule, seed: simulation(schedule, seed, partavg.as_samples(TRAIN), 0.5),
        20, interval=4, seeds=[1, 2], test=TEST, out=tmp_path / "compared",
    )  # fmt: skip
    for seed in (1, 2):
        ours, theirs = found.tests.run("partial", seed), same.run("partial", seed)
        assert ours.metrics["loss"].tolist() == theirs.metrics["loss"].tolist()
        assert ours.summary["accuracy"] == theirs.summary["accuracy"]


def test_settings_are_judged_on_samples_that_nobody_trains_on(tmp_path: Path) -> None:
    seen: list[int] = []

    def noted(schedule: Any, seed: int, samples: partavg.Samples, lr: float) -> Any:
        seen.append(samples.size)
        return simulation(schedule, seed, samples, lr)

    partavg.sweep(**{**GIVEN, "simulation": noted, "validation": 0.25}, out=tmp_path / "share")
    assert seen == [150] * 4 + [200] + [150, 150, 200, 200] * 3, "some were tried out before"
    judged = [
        json.loads(path.read_text()).get("judged_on", "test")
        for path in sorted((tmp_path / "share").glob("*/**/summary.json"))
    ]
    assert judged == ["test"] * 6 + ["validation"] * 6
    seen.clear()
    partavg.sweep(**{**GIVEN, "simulation": noted, "validation": TEST}, out=tmp_path / "own")
    assert seen == [200] * 17


@pytest.mark.parametrize("search", ["listed", "halving", "optuna"])
def test_what_is_stopped_goes_on_to_the_same_result(tmp_path: Path, search: str) -> None:
    options = {**GIVEN, "search": search, "every": 5, "tune_seeds": 2}
    options |= {"grid": {"lr": "loguniform(0.01, 1)"}, "budget": 24}
    whole = partavg.sweep(**options, out=tmp_path / "whole")
    made = count()

    def dies(*given: Any, **settings: Any) -> partavg.Simulation:
        if next(made) == 9:
            raise KeyboardInterrupt
        return simulation(*given, **settings)

    with pytest.raises(KeyboardInterrupt):
        partavg.sweep(**{**options, "simulation": dies}, out=tmp_path / "out")
    again = partavg.sweep(**options, out=tmp_path / "out", resume=True)
    assert numbers(again) == numbers(whole)


def test_what_diverges_is_not_chosen_and_is_told(tmp_path: Path) -> None:
    def fast(schedule: Any, seed: int, samples: Any, lr: float) -> partavg.Simulation:
        return simulation(schedule, seed, samples, lr if seed < 2 else 1e30)

    found = partavg.sweep(
        **{**GIVEN, "simulation": fast, "grid": {"lr": [0.1, 1e30]}}, out=tmp_path / "out"
    )
    assert found.settings["partial"] == {"lr": 0.1}
    assert list(found.tests.diverged) == ["periodic seed 2", "partial seed 2", "synchronous seed 2"]
    assert any("partial diverged in 1 of 2 seeds of the test (2)" in line for line in found.said)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"grid": {}}, "is no dict of settings"),
        ({"grid": [0.1]}, "is no dict of settings"),
        ({"grid": {"lr": 0.1}}, "list some values"),
        ({"grid": {"lr": []}}, "has no value"),
        ({"grid": {"lr": [0.1, 0.1]}}, "twice"),
        ({"grid": {"lr": [None]}}, "cannot be written down"),
        ({"grid": {"learning rate": [0.1]}}, "no name of an argument"),
        ({"grid": {"momentum": [0.1]}}, "is no function of a scheme, a seed, samples and momentum"),
        ({"grid": {"lr": "loguniform(0.1, 1)"}}, "by budget"),
        ({"simulation": 3}, "is no function"),
        ({"validation": 0.0}, "no validation set"),
        ({"validation": 1.0}, "no validation set"),
        ({"search": "wide"}, "search 'wide' is not known"),
        ({"budget": 2}, "less than one for each"),
        ({"interval": None}, "needs schemes"),
        ({"resume": True}, "give out"),
        ({"test": None}, "None"),
        ({"test": (X[:, :3], Y)}, "cannot be computed on inputs"),
        ({"metrics": ["nix"]}, "metric 'nix' is not known"),
        ({"grid": {"lr": [-1.0]}}, "lr is -1.0"),
        ({"grid": {"lr": [0.1, -1.0]}}, "lr is -1.0"),
        ({"interval": 100}, "cannot fill 100 parts"),
        ({"simulation": lambda schedule, seed, samples, lr: None}, "gave NoneType"),
    ],
)
def test_what_cannot_be_swept_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=sentence) as caught:
        partavg.sweep(**{**GIVEN, **given})
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*")), "nothing is left behind"


def test_a_folder_keeps_to_its_sweep(tmp_path: Path) -> None:
    few = {**GIVEN, "grid": {"lr": [0.5]}, "seeds": 1}
    partavg.sweep(**few, out=tmp_path)
    with pytest.raises(ValueError, match="use resume=True to continue it, force=True to begin"):
        partavg.sweep(**few, out=tmp_path)
    with pytest.raises(ValueError, match="holds a sweep with until = 20, and not 30"):
        partavg.sweep(**{**few, "until": 30}, out=tmp_path, resume=True)
    begun = partavg.sweep(**{**few, "until": 30}, out=tmp_path, force=True)
    assert begun.tests.run("partial", 1).summary["steps"] == 30


def test_a_function_that_changed_does_not_go_on(tmp_path: Path) -> None:
    def other(schedule: Any, seed: int, samples: Any, lr: float) -> partavg.Simulation:
        return simulation(schedule, seed, samples, lr * 2)

    few = {**GIVEN, "grid": {"lr": [0.5]}, "seeds": 1}
    partavg.sweep(**few, out=tmp_path)
    with pytest.raises(ValueError, match="was started with training"):
        partavg.sweep(**{**few, "simulation": other}, out=tmp_path, resume=True)


def test_all_runs_that_are_there_are_looked_at(tmp_path: Path) -> None:
    """Some of the settings, a seed, the samples: whatever changed for some runs only."""
    few = {**GIVEN, "interval": None, "schemes": {"partial": partavg.Schedule.partial(4)}}
    few["out"] = tmp_path
    partavg.sweep(**few)

    def other(where: dict[str, Any]) -> Any:
        def made(schedule: Any, seed: int, samples: Any, lr: float) -> partavg.Simulation:
            found = {"seed": seed, "lr": lr}
            differs = all(found[key] == value for key, value in where.items())
            return simulation(schedule, seed, samples, lr * 2 if differs else lr)

        return made

    again = {**few, "resume": True}
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json*")}
    for where in ({"seed": 0, "lr": 0.01}, {"seed": 0, "lr": 0.5}, {"seed": 1}, {"seed": 2}):
        with pytest.raises(ValueError, match=r"was started with training\.lr"):
            partavg.sweep(**{**again, "simulation": other(where)})
    x, y = TEST
    with pytest.raises(ValueError, match="was started with other test samples than there are now"):
        partavg.sweep(**{**again, "test": (x, y.flip(0))})
    x, y = TRAIN
    with pytest.raises(ValueError, match="was started with other training samples than this"):
        partavg.sweep(**{**again, "train": (x.flip(0), y.flip(0))})
    with pytest.raises(ValueError, match="was measured by the usual metrics, and others would be"):
        partavg.sweep(**{**again, "metrics": ["f1"]})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json*")} == before
    partavg.sweep(**again)
    for path in tmp_path.rglob("environment.json"):  # of before 0.2
        known = {k: v for k, v in json.loads(path.read_text()).items() if k != "data"}
        path.write_text(json.dumps(known))
    partavg.sweep(**again)


def test_values_may_be_those_of_an_array(tmp_path: Path) -> None:
    grid = {"lr": np.array([0.5, 0.1]), "units": torch.tensor([4, 8])}

    def wide(schedule: Any, seed: int, samples: Any, lr: float, units: int) -> partavg.Simulation:
        assert type(lr) is float
        assert type(units) is int
        return simulation(schedule, seed, samples, lr)

    few = {**GIVEN, "simulation": wide, "grid": grid, "seeds": 1}
    assert partavg.sweep(**few, out=tmp_path).settings["partial"]["lr"] in (0.5, 0.1)


def test_training_on_other_samples_than_given_is_refused(tmp_path: Path) -> None:
    def cheats(schedule: Any, seed: int, samples: Any, lr: float) -> partavg.Simulation:
        return simulation(schedule, seed, partavg.as_samples(TRAIN), lr)

    with pytest.raises(ValueError, match="was given 180: train on those"):
        partavg.sweep(**{**GIVEN, "simulation": cheats}, out=tmp_path)
