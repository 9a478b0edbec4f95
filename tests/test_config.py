import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partavg import config as configs
from partavg import recipe as recipes
from partavg.config import COMPONENTS, Component, Config
from partavg.config_toml import differences, dump, dump_sections, parse
from partavg.solvers.adam import Adam
from partavg.solvers.fedprox import FedProx
from partavg.solvers.sgd import SGD


def load(path: Path, overrides: list[str] | None = None) -> Config:
    return recipes.load(path, overrides or ()).config()


def test_names_of_options_may_have_umlauts() -> None:
    model = Component("own.py:Net", {"hübsch": True, "width": 3})
    text = dump_sections({"model": model})
    assert tomllib.loads(text)["model"] == {"name": "own.py:Net", "hübsch": True, "width": 3}
    assert "\nwidth = 3" in text


def test_an_empty_recipe_has_defaults() -> None:
    config = parse({})
    assert config.model.name == "mlp"
    assert config.solver.options["momentum"] == 0.0
    assert config.averaging.parts == config.averaging.interval == 10


def test_a_whole_partition_has_one_part() -> None:
    assert parse({"averaging": {"partition": "whole"}}).averaging.parts == 1


@given(
    st.fixed_dictionaries(
        {
            "training": st.fixed_dictionaries(
                {},
                optional={
                    "workers": st.integers(1, 999),
                    "lr": st.floats(1e-12, 1e12),
                    "seed": st.integers(0, 2**40),
                },
            ),
            "split": st.sampled_from(
                [{}, {"name": "dirichlet", "alpha": 1, "balanced": False, "minimum": 3}]
            ),
            "model": st.sampled_from([{}, {"hidden": [8, 9]}, {"name": "resnet20"}]),
            "engine": st.fixed_dictionaries({}, optional={"device": st.text()}),
            "averaging": st.sampled_from([{}, {"interval": 12, "parts": 4}]),
            "solver": st.sampled_from(
                [
                    {"name": "fedprox", "mu": 0.5, "base": {"name": "adam", "beta1": 0.5}},
                    {"name": "scaffold", "base": {"momentum": 0.9}},
                    {"name": "fedavgm", "base": {"name": "fedprox", "base": {"momentum": 0.1}}},
                ]
            ),
        }
    )
)
def test_dump_and_parse_are_inverse(table: dict) -> None:
    config = parse(table)
    assert parse(tomllib.loads(dump(config))) == config
    assert differences(config, config) == []


def test_differences_name_the_keys() -> None:
    one = parse({})
    other = parse({"training": {"seed": 5}, "split": {"name": "dirichlet"}})
    assert "training.seed" in differences(one, other)
    assert "split.alpha" in differences(one, other)
    assert differences(one, replace(one, training=replace(one.training, lr=1.0))) == ["training.lr"]


def test_overrides(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[training]\nworkers = 3\n")
    config = load(
        recipe,
        [
            "training.workers=5",
            "model.hidden=[7, 7]",
            "averaging.partition=layer",
            'split.name="iid"',
        ],
    )
    assert config.training.workers == 5
    assert config.model.options["hidden"] == (7, 7)
    assert config.averaging.partition == "layer"


def test_another_component_starts_with_its_own_options(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[model]\nname = 'mlp'\nhidden = [3]\n")
    other = load(recipe, ["model.name=cnn", "model.width=8"])
    assert other.model.options == {"width": 8}
    assert load(recipe, ["model.name=mlp"]).model.options["hidden"] == (3,)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"trainig": {}}, "unknown key 'trainig': did you mean 'training'?"),
        (
            {"averaging": {"intervall": 8}},
            "unknown key 'averaging.intervall': did you mean 'averaging.interval'?",
        ),
        ({"solver": {"momentun": 0.9}}, "did you mean 'solver.momentum'?"),
        ({"metrics": {"xyzzy": 1}}, "use metrics.evaluate_every, metrics.local_accuracy"),
        ({"model": {"name": "mpl"}}, "model.name = 'mpl' is not known: did you mean 'mlp'?"),
        ({"training": 3}, "training = 3 is not a section: write [training], keys below it"),
        ({"training": {"workers": "8"}}, 'training.workers = "8": input should be a valid integer'),
        ({"training": {"workers": 8.5}}, "training.workers = 8.5: input should be a valid integer"),
        ({"training": {"workers": True}}, "training.workers = true: input should be a valid"),
        ({"training": {"workers": 0}}, "training.workers = 0: input should be greater than or"),
        ({"training": {"lr": 0}}, "training.lr = 0: input should be greater than 0"),
        ({"training": {"steps": -1}}, "training.steps = -1: input should be greater than or"),
        ({"model": {"hidden": ["a"]}}, 'model.hidden = ["a"]: input should be a valid integer'),
        ({"model": {"name": 3}}, "model.name = 3: input should be a valid string"),
        ({"averaging": {"partition": "chanel"}}, "is not known: did you mean 'channel'?"),
        ({"training": {"lr": float("inf")}}, "training.lr = inf: input should be a finite number"),
        ({"solver": {"momentum": float("nan")}}, "momentum = nan: input should be a finite number"),
    ],
)
def test_mistakes_get_one_sentence(table: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        parse(table)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "overrides", "sentence"),
    [
        ("[training", [], "is not valid TOML"),
        ("", ["training.lr"], "override 'training.lr' is not of the form section.key=value"),
        ("", ["lr=1"], "override 'lr=1' is not of the form"),
        ("training = 1", ["training.lr=1"], "training = 1 is not a section"),
        ("", ["training.lr=fast"], 'training.lr = "fast": input should be a valid number'),
    ],
)
def test_bad_files_and_overrides(
    tmp_path: Path, text: str, overrides: list[str], sentence: str
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load(recipe, overrides)


def test_a_missing_file() -> None:
    with pytest.raises(ValueError, match=r"cannot read nowhere\.toml"):
        load(Path("nowhere.toml"))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="cannot read"):
        load(tmp_path / "recipe.toml")


@pytest.mark.parametrize("kind", sorted(COMPONENTS))
def test_every_component_has_options_that_can_be_written_down(kind: str) -> None:
    registry, default = COMPONENTS[kind]
    assert default in registry
    for name in registry:
        config = parse({kind: {"name": name}})
        assert parse(tomllib.loads(dump(config))) == config


def test_naming_an_engine_keeps_its_other_settings(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("")
    config = load(tmp_path / "recipe.toml", ["engine.chunk=8", "engine.name=vmapped"])
    assert (config.engine.name, config.engine.chunk) == ("vmapped", 8)


def test_a_solver_below_a_solver(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[solver]\nname = "fedprox"\n[solver.base]\nmomentum = 0.9\n')
    made = configs.create("solver", load(recipe).solver)
    assert made == FedProx(0.01, SGD(momentum=0.9))
    changed = load(recipe, ["solver.base.momentum=0.5", "solver.mu=0.2"])
    assert configs.create("solver", changed.solver) == FedProx(0.2, SGD(momentum=0.5))
    other = load(recipe, ["solver.base.name=adam", "solver.base.beta1=0.5"])
    assert configs.create("solver", other.solver) == FedProx(0.01, Adam(beta1=0.5))
    assert differences(load(recipe), changed) == ["solver.mu", "solver.base"]


@pytest.mark.parametrize(
    ("solver", "sentence"),
    [
        (
            {"name": "scaffold", "base": {"name": "adam"}},
            "solver.base.name = 'adam' cannot be used",
        ),
        ({"name": "fedprox", "base": {"momentun": 1}}, "did you mean 'solver.base.momentum'"),
        ({"name": "fedprox", "base": "sgd"}, r"solver.base = \"sgd\" is not a section"),
        ({"name": "fedprox", "base": {"momentum": "x"}}, "solver.base.momentum = "),
    ],
)
def test_mistakes_below_a_solver(solver: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse({"solver": solver})
