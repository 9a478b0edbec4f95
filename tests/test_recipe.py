"""The recipes that come with the package: those of the paper's tables run as they stand."""

from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
import torch

from partavg import build
from partavg import recipe as recipes
from partavg.comparison import configured, planned_runs, schemes_of
from partavg.config_toml import differences
from partavg.data.dataset import Dataset, Samples
from partavg.folder import RunFolder
from partavg.recipe import Recipe
from partavg.recipe_run import Run
from partavg.recipes.files import about

NAMES = recipes.names()
PAPER = [name for name in NAMES if name.startswith("table")]
SIZES = {
    "cifar10": (50_000, 10), "cifar100": (50_000, 100), "svhn": (604_388, 10),
    "fashion_mnist": (60_000, 10), "imdb": (25_000, 2), "femnist": (70_000, 62),
    "fashion_subset": (12_000, 10), "king_james": (12_800, 256), "imdb_text": (120_000, 256),
}  # fmt: skip


def made(name: str, samples: int, side: int = 8) -> Dataset:
    """Made-up data in the form of a dataset, of small images or short texts."""
    _, classes = SIZES[name]
    generator = torch.Generator().manual_seed(0)
    if name in ("king_james", "imdb_text"):
        texts = torch.randint(0, 256, (samples, side + 1), generator=generator, dtype=torch.uint8)
        pair = Samples(texts[:, :-1], texts[:, 1:])
        return Dataset(pair, pair.some(slice(8)), classes, torch.arange(samples) % 8)
    targets = torch.arange(samples) % classes
    if name == "imdb":
        inputs = torch.randint(0, 10_000, (samples, side), generator=generator)
    else:
        channels = 3 if name in ("cifar10", "cifar100", "svhn") else 1
        shape = samples, channels, side, side
        inputs = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    writers = torch.arange(samples) % 7 if name == "femnist" else None
    return Dataset(
        Samples(inputs, targets), Samples(inputs[:8], targets[:8]), classes=classes, writers=writers
    )


@cache
def whole(name: str) -> Dataset:
    """As many samples as there are, of the size they have: all alike, so they take no memory."""
    samples, classes = SIZES[name]
    sides = {"imdb": 200, "cifar10": 32, "cifar100": 32, "svhn": 32}
    one = made(name, 1, sides.get(name, 28))
    inputs = one.train.inputs.expand(samples, *one.train.inputs.shape[1:])
    if one.train.tokens:
        targets = one.train.targets.expand(inputs.shape)
        return one._replace(train=Samples(inputs, targets), writers=torch.arange(samples) % 8)
    writers = torch.arange(samples) % 3500 if name == "femnist" else None
    return one._replace(train=Samples(inputs, torch.arange(samples) % classes), writers=writers)


def test_there_is_one_recipe_for_each_row_of_the_papers_tables() -> None:
    tables = [name.partition("/")[0] for name in PAPER]
    counts = {table: tables.count(table) for table in tables}
    assert counts == {
        "table1": 15, "table2": 4, "table3": 18, "table4": 9, "table5": 3, "table6": 9,
    }  # fmt: skip
    for name in PAPER:
        paper = recipes.load(name).paper
        assert paper is not None
        assert name.startswith(f"table{paper.table[0]}")


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_could_run(name: str, tmp_path: Path) -> None:
    """All its schemes as they stand, on data as there are."""
    recipe = recipes.load(name)
    for entry in planned_runs(recipe, schemes_of(recipe), 1, tmp_path):
        build.check(entry.config, whole(entry.config.data.name))


MODELS = {recipes.load(name).config().model.name: name for name in NAMES}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.slow
def test_a_recipe_of_every_model_trains(model: str) -> None:
    """The real model and settings; two workers, small made data, two steps."""
    small = ["training.workers=2", "training.batch=2", "training.steps=2", "engine.name=looped"]
    config = recipes.load(MODELS[model], [*small, "averaging.interval=2"]).config()
    data = made(config.data.name, 80)
    simulation = build.simulation(config, data, build.device(config))
    losses = [simulation.mean_loss(record.losses) for record in simulation.train(2)]
    assert all(0 < loss < 20 for loss in losses)
    assert 0 < simulation.evaluate(data.test).loss < 100
    assert simulation.workers.messages == simulation.schedule.parts


@pytest.mark.parametrize(
    ("name", "steps", "warmup", "decays"),
    [
        ("table1/cifar10-interval8", 3662, 61, (1831, 2747)),
        ("table1/cifar100-interval2", 3052, 61, (1465, 2258)),
        ("table1/svhn-interval64", 11_804, 369, (5902, 8853)),
        ("table1/fashion_mnist-interval4", 1318, 73, (732, 1099)),
        ("table1/imdb-interval4", 1758, 98, (1172, 1563)),
        ("table3/cifar10-alpha0.1-active100", 10_000, 61, (5000, 7500)),
        ("table3/cifar10-alpha0.5-active25", 10_000, 244, (5000, 7500)),
        ("table3/imdb-alpha1-active50", 2000, 195, (1500, 1800)),
        ("table2/cifar10-one-worker", 117_188, 1953, (58_594, 87_891)),
    ],
)
def test_budgets_and_learning_rates(
    name: str, steps: int, warmup: int, decays: tuple[int, int]
) -> None:
    config = recipes.load(name).config()
    samples, _ = SIZES[config.data.name]
    data = made(config.data.name, 1, side=1)
    data = data._replace(train=Samples(data.train.inputs, torch.zeros(1).expand(samples)))
    rate, base = build.rate(config, data), config.training.lr
    assert build.steps(config, data) == steps
    assert rate(warmup) == base != rate(warmup - 1)
    for number, step in enumerate(decays):
        assert rate(step) == pytest.approx(base / 10**number)
        assert rate(step + 1) == pytest.approx(base / 10 ** (number + 1))


def test_the_schemes_of_the_non_iid_tables() -> None:
    recipe = recipes.load("table3/cifar10-alpha0.5-active25")
    periodic, partial = (configured(recipe, scheme) for scheme in ("periodic", "partial"))
    seen = [(c.averaging.interval, c.averaging.parts, c.participation.every)
            for c in (periodic, partial)]  # fmt: skip
    assert seen == [(10, 1, 10), (11, 11, 110)]
    assert build.participation(partial).active == 32
    assert set(differences(periodic, partial)) == {
        "averaging.interval", "averaging.parts", "averaging.partition", "participation.every",
    }  # fmt: skip
    design1 = configured(recipes.load("table4/cifar10-alpha0.5-active25"), "partial")
    assert differences(partial, design1) == ["participation.redistribution"]
    layer = configured(recipes.load("table5/cifar10-interval8"), "partial")
    channel = configured(recipes.load("table1/cifar10-interval8"), "partial")
    assert differences(channel, layer) == ["averaging.partition"]


def test_overrides_win_over_schemes() -> None:
    recipe = recipes.load("table3/femnist-active25", ["averaging.interval=6"])
    assert configured(recipe, "periodic").averaging.interval == 6
    assert configured(recipe, "partial").averaging.parts == 6


def test_the_study_of_solvers_has_each_with_both_schemes() -> None:
    recipe = recipes.load("study/solvers")
    seen = {
        (config.solver.name, config.pace.name, config.averaging.parts)
        for config in (configured(recipe, scheme) for scheme in schemes_of(recipe))
    }
    names = ("sgd", "fedprox", "scaffold", "vrl_sgd", "fednova", "fedavgm")
    assert seen == {(name, "even", parts) for name in names for parts in (1, 20)} | {
        (name, "drawn", parts) for name in ("sgd", "fednova") for parts in (1, 20)
    }


def test_a_scheme_of_ones_own() -> None:
    recipe = Recipe("mine", {"averaging": {"interval": 12}}, {"half": {"averaging": {"parts": 6}}})
    assert configured(recipe, "half").averaging.parts == 6
    assert schemes_of(recipe) == ("half",)
    between = recipes.load("study/between")
    parts = [configured(between, scheme).averaging.parts for scheme in schemes_of(between)]
    assert parts == [1, 2, 4, 5, 10, 20]
    assert schemes_of(Recipe("mine", {}, {})) == ("periodic", "partial", "synchronous")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("schemes = 3", r"schemes are sections: write \[schemes.partial\]"),
        ("[schemes]\npartial = 3", r"schemes are sections"),
        ("[schemes.partial]\ninterval = 3", "schemes.partial.interval is not a section"),
        ("[schemes.partial]\naveraging.intervall = 3", "did you mean 'averaging.interval'"),
        ("[paper]\npartial = [88.1, 0.1]", r"\[paper\] holds the table"),
        ("[paper]\ntable = 1\npartial = [88.1]", r"\[paper\] holds the table"),
        ("paper = 1", r"\[paper\] holds the table"),
        ("[training]\nsteps = 3\nepochs = 3", "are two budgets: give one"),
    ],
)
def test_mistakes_in_recipes(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        configured(recipes.load(path), "partial")


def test_recipes_are_found_by_name_or_file(tmp_path: Path) -> None:
    assert recipes.load("demo").name == "demo"
    assert recipes.load("table1/imdb-interval2").name == "table1/imdb-interval2"
    with pytest.raises(ValueError, match="did you mean 'table1/imdb-interval2'"):
        recipes.load("table1/imbd-interval2")
    with pytest.raises(ValueError, match="'xyzzy' is not known: `partavg recipes` lists them"):
        recipes.load("xyzzy")
    with pytest.raises(ValueError, match=r"cannot read nowhere\.toml"):
        recipes.load("nowhere.toml")


def test_one_budget_replaces_the_other() -> None:
    config = recipes.load("table1/imdb-interval2", ["training.steps=7"]).config()
    assert (config.training.steps, config.training.epochs) == (7, None)
    data = made("imdb", 25_000)
    assert build.steps(config, data) == 7
    assert build.rate(config, data)(7) == pytest.approx(0.6 * 7 / 98), "epochs stay epochs"


def test_scale_shortens_everything_alike() -> None:
    config = recipes.load("table1/imdb-interval2", ["training.scale=0.1"]).config()
    data = made("imdb", 25_000)
    assert build.steps(config, data) == 176
    assert build._lengths(config, data)["epochs"] == Fraction(25_000, 1280) / 10
    few = build.scaled(config, data)
    assert len(few.train.targets) == 64 * 128, "64 for each worker at least"
    assert few.train.targets.bincount().tolist() == [4096, 4096]


@pytest.mark.parametrize(
    ("name", "overrides", "sentence"),
    [
        ("table1/imdb-interval2", ["model.words=9000"], "model.words = 9000 is too few"),
        ("table1/imdb-interval2", ["model.name=resnet20"], "cannot read the words of imdb: use"),
        ("table1/cifar10-interval2", ["model.name=lstm"], "reads words, and cifar10 has none"),
        ("table1/imdb-interval2", ["images.flip=true"], "are for images, and imdb has none"),
    ],
)
def test_models_and_data_that_do_not_fit(
    name: str, overrides: list[str], sentence: str, tmp_path: Path
) -> None:
    config = recipes.load(name, [*overrides, "training.workers=2"]).config()
    data = made(config.data.name, 80)
    with pytest.raises(ValueError, match=sentence):
        build.check(config, data)
    with pytest.raises(ValueError, match=sentence):
        Run(config, data, RunFolder(tmp_path / "run"), resume=False, force=False)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_text("# Made by an editor.\n[training]\nsteps = 7\n", encoding="utf-8-sig")
    assert recipes.load(path).config().training.steps == 7
    assert about(path) == "Made by an editor"
