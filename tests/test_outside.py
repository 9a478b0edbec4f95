"""A solver, a metric, a sink, a model and a dataset from one file outside the package."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.outside import FedDyn, Told, registered

import partavg
from partavg.build import solver
from partavg.cli import main
from partavg.recipe import load
from partavg.registry import table

RECIPE = """
[data]
name = "points"
count = 96
[split]
name = "dirichlet"
alpha = 1.0
minimum = 1
[model]
name = "tanh_net"
hidden = 5
[solver]
name = "feddyn"
alpha = 0.2
base = {momentum = 0.5}
[averaging]
interval = 3
partition = "thirds"
[training]
workers = 4
batch = 4
steps = 6
[metrics]
extra = ["largest"]
sinks = ["told"]
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Told, "told", [])
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return path


def partavg_does(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.output


def test_all_of_it_in_a_run_and_its_report(recipe: Path) -> None:
    with registered():
        said = partavg_does("run", recipe, "--out", "run")
        rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
        assert [what for what, _ in Told.told] == ["begin", *["take"] * 6, "end"]
        (_, info), *taken, (_, summary) = Told.told
        assert info.settings["solver.alpha"] == 0.2
        assert [row for _, row in taken] == rows
        assert summary == json.loads(Path("run/summary.json").read_text())
        assert summary["peak_largest"] == max(row["largest"] for row in rows)
        assert "<h3>Largest parameter</h3>" in Path("run/report.html").read_text()
        assert "accuracy of u_K" in said
        assert "finished already" in partavg_does("run", recipe, "--out", "run", "--resume")


def test_all_of_it_in_a_comparison(recipe: Path) -> None:
    with registered():
        said = partavg_does("compare", recipe, "--schemes", "periodic,partial", "--out", "both")
    assert "largest" in said
    begun = [info.label for what, info in Told.told if what == "begin"]
    assert begun == ["periodic", "partial"]


def test_options_are_checked_like_those_of_our_own(recipe: Path) -> None:
    with registered():
        for wrong, problem in {
            "model.hiden=3": "did you mean 'model.hidden'?",
            "solver.alpha='much'": "solver.alpha = ",
            "solver.base.name=points": "is not known: use adam",
            "metrics.extra=['largets']": "did you mean 'largest'?",
            "metrics.sinks=['tolt']": "did you mean 'told'?",
            "averaging.partition=third": "did you mean 'thirds'?",
        }.items():
            assert problem in partavg_does("run", recipe, "--set", wrong, code=2), wrong


@dataclass(frozen=True, slots=True)
class OnAdamW(FedDyn):
    """Has another base than recipes take where they name none."""

    base: partavg.Solver = field(default_factory=partavg.adamw)


def test_a_base_of_its_own_is_named_and_not_replaced(recipe: Path) -> None:
    with registered():
        partavg.register("solver", "on_adamw", OnAdamW)
        for base in ("{}", "{momentum = 0.5}"):
            with pytest.raises(ValueError, match=r"solver\.base\.name is not given"):
                load(recipe, ["solver.name=on_adamw", f"solver.base={base}"]).config()
        config = load(recipe, ["solver.name=on_adamw", "solver.base.name=adamw"]).config()
        assert solver(config) == OnAdamW()


def test_a_name_that_is_not_registered_is_not_known(recipe: Path) -> None:
    said = partavg_does("run", recipe, code=2)
    assert "data.name = 'points' is not known" in said


@pytest.mark.parametrize(
    ("kind", "name", "thing", "problem"),
    [
        ("solver", "sgd", object, "solver 'sgd' is there already: choose another name"),
        ("slover", "mine", object, "kind = 'slover' is not known: did you mean 'solver'?"),
        ("model", "my net", object, "'my net' cannot name a model: use letters"),
        ("model", "3", object, "'3' cannot name a model"),
        ("model", "mine", 3, "3 cannot be a model: give a class or a function"),
        ("metric", "mine", print, "cannot be a metric: give a partavg.Metric"),
        ("metric", "mine", partavg.Metric("other"), "metric 'mine' has the key 'other'"),
        ("metric", "step", partavg.Metric("step"), "metric 'step' would hide what rows"),
    ],
)
def test_names_that_cannot_be(kind: str, name: str, thing: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        partavg.register(kind, name, thing)


def test_registering_the_same_thing_twice_is_no_mistake() -> None:
    def net(shape: tuple[int, ...], classes: int) -> None:
        """A model."""

    assert partavg.register("model", "net")(net) is net
    assert partavg.register("model", "net", net) is net
    del table("model")["net"]
