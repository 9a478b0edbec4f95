"""A solver, a metric, a sink, a model and a dataset from one file outside the package."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from click.testing import CliRunner
from tests.outside import FedDyn, Told, names_restored, points, registered

import partavg
from partavg.build import solver
from partavg.cli import main
from partavg.data.dataset import Dataset, Samples
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
        ("model", 3, object, "3 cannot name a model"),
        ("model", "mine", 3, "3 cannot be a model: give a class or a function"),
        ("metric", "mine", 3, "cannot be a metric: give a partavg.Metric, or a function"),
        ("metric", "mine", dict, "cannot be a metric: give a partavg.Metric, or a function"),
        ("metric", "mine", len, r"cannot be called with \(outputs, targets\)"),
        ("metric", "mine", partavg.Metric("other"), "metric 'mine' has the key 'other'"),
        ("metric", "step", partavg.Metric("step"), "metric 'step' would write 'step'"),
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


def test_what_is_defined_again_at_its_place_takes_the_name() -> None:
    """As by a reload, or a cell of a notebook that is run again."""
    source = "def net(shape, classes):\n    pass\n"
    one, two, other = ({"__name__": name} for name in ("mine", "mine", "yours"))
    for module in (one, two, other):
        exec(source, module)
    with names_restored():
        partavg.register("model", "net", one["net"])
        partavg.register("model", "net", two["net"])
        assert table("model")["net"] is two["net"]
        with pytest.raises(ValueError, match="is there already"):
            partavg.register("model", "net", other["net"])


class Class:
    """Anything."""


def no_arguments():
    """Takes nothing."""


def three_arguments(shape, classes, width):
    return torch.nn.Linear(*shape, classes)


def without_types(shape, classes, *, hidden=3):
    return torch.nn.Linear(*shape, classes)


def of_lists(shape, classes, *, widths: list[int] = [4], more: dict[str, int] = {"a b": 1}):  # noqa: B006
    return torch.nn.Linear(*shape, classes)


def own_type(shape, classes, *, of: Class = Class()):  # noqa: B008
    return torch.nn.Linear(*shape, classes)


def unknown_type(shape, classes, *, of: "Nowhere" = 1):  # type: ignore[name-defined]
    return torch.nn.Linear(*shape, classes)


def untyped(shape, classes, *, of=None):
    return torch.nn.Linear(*shape, classes)


def no_default(shape, classes, *, hidden: int):
    return torch.nn.Linear(*shape, classes)


def called(shape, classes, *, name: str = "x"):
    return torch.nn.Linear(*shape, classes)


def narrow(shape, classes):
    return torch.nn.Linear(*shape, classes - 1)


def other_input(shape, classes):
    return torch.nn.Linear(77, classes)


def anything(*_, **__):
    return 3


def unpaired(root):
    data = points(root)
    return data._replace(train=Samples(data.train.inputs[:-1], data.train.targets))


def too_few_classes(root):
    return points(root)._replace(classes=2)


def text(root):
    samples = ["good", "bad"], [1, 0]
    return Dataset(samples, samples, 2)


def of_another_model(layout, parts, seed):
    spans = [(partavg.Span(part, part + 1),) for part in range(parts)]
    return partavg.Partition(parts, tuple(spans))


def beyond(labels, workers, seed):
    return [torch.arange(len(labels)) + 1] * workers


def each_sample(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


class Silent:
    """A sink that takes nothing."""

    told: ClassVar[list[Any]] = []


@pytest.mark.parametrize(
    ("kind", "thing", "problem"),
    [
        ("model", three_arguments, "cannot be called with the shape of an input"),
        ("model", no_arguments, "gave NoneType, and not a torch.nn.Module"),
        ("model", own_type, "model.of is to be a Class, which no recipe can hold"),
        ("model", unknown_type, "has options that cannot be read: name 'Nowhere'"),
        ("model", untyped, "has an option 'of' without a type: annotate it"),
        ("model", no_default, "model.hidden is missing, and has no default"),
        ("model", called, "has an option 'name', which is its own name"),
        ("model", anything, "gave int, and not a torch.nn.Module"),
        ("model", narrow, "cannot be trained on points, with inputs [5] and 3 classes"),
        ("model", other_input, "cannot be trained on points"),
        ("data", anything, "gave int, and not a partavg.data Dataset"),
        ("data", unpaired, "training samples: inputs [119, 5] and targets [120] differ in length"),
        ("data", too_few_classes, "targets from 0 to 2: with 2 classes, use 0 to 1"),
        ("data", text, "training samples: the inputs hold text: make numbers of it"),
        ("partition", no_arguments, "cannot be called with a layout"),
        ("partition", anything, "gave int, and not a Partition"),
        ("partition", of_another_model, "cut the model that is trained"),
        ("loss", no_arguments, "cannot be called with outputs and targets"),
        ("loss", anything, "loss.name = 'odd' gave 3 for a batch: return the mean"),
        ("loss", each_sample, "loss.name = 'odd' gave a tensor [2] for a batch"),
        ("loss", Silent, "gave Silent, and not a function of outputs and targets"),
        ("split", anything, "split.name = 'odd' is 3: give a list with the indices of each worker"),
        ("split", beyond, "split.name = 'odd': worker 0 owns sample 96, and there are 0 to 95"),
        ("solver", anything, "gave int, and not a Solver: it lacks init, step_, encode, decode_"),
        ("lr_schedule", anything, "gave int, and not a function of the step"),
        ("pace", anything, "gave int, and not a function of the step, or None"),
        ("adapt", anything, "gave int, and not an Adapt, or None"),
        ("sink", anything, "gave int, which has not the functions begin, take and end"),
        ("sink", Silent, "gave Silent, which has not the functions"),
        ("sink", lambda: {}["key"], "cannot be made: KeyError: 'key'"),
        ("sink", partavg.SGD.step_, "cannot be called without arguments"),
    ],
)
def test_what_does_not_fit_its_kind_is_said(
    recipe: Path, kind: str, thing: Any, problem: str
) -> None:
    key = {"partition": "averaging.partition=odd", "sink": "metrics.sinks=['odd']"}
    with registered():
        partavg.register(kind, "odd", thing)
        words = ["--set", key.get(kind, f"{kind}.name=odd")]
        assert problem in partavg_does("run", recipe, *words, code=2)


@pytest.mark.parametrize("model", [without_types, of_lists])
def test_options_of_any_type_that_a_recipe_can_hold(recipe: Path, model: Any) -> None:
    with registered():
        partavg.register("model", "odd", model)
        words = ["run", recipe, "--set", "model.name=odd", "--out", "run"]
        partavg_does(*words)
        assert "finished already" in partavg_does(*words, "--resume")
