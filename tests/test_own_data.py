"""Data that is no classification of one tensor, in recipes and on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests import tasks
from tests.outside import names_restored
from torch import Tensor, nn

import partavg
from partavg import Dataset, build
from partavg.cli import main
from partavg.config_toml import dump, parse

RECIPE = """
[data]
name = "{data}"
[split]
name = "{split}"
[model]
name = "{model}"
[averaging]
interval = 2
weights = [1.0, 2.0, 3.0, 4.0]
[training]
workers = 4
batch = 4
steps = 4
"""


class Reader(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, classes)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.out((self.words(ids) * mask[..., None]).sum(1))


def reader(shape: dict[str, tuple[int, ...]], classes: int) -> nn.Module:
    assert shape == {"ids": (5,), "mask": (5,)}
    return Reader(classes)


def reviews(root: Path) -> Dataset:
    """Two inputs by name, and who wrote each."""
    ids, mask = torch.arange(300).view(60, 5) % 9, torch.ones(60, 5)
    samples = {"ids": ids, "mask": mask, "label": torch.arange(60) % 3}
    return Dataset(samples, samples, classes=3, writers=[f"person {i % 6}" for i in range(60)])


def shares(root: Path) -> Dataset:
    """Probabilities as targets: there are no classes."""
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    return Dataset((x, x[:, :3].softmax(1)), (x, x[:, :3].softmax(1)))


def three(shape: tuple[int, ...], classes: None) -> nn.Module:
    assert classes is None
    return nn.Linear(*shape, 3)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def write(**names: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(RECIPE.format(**names))
        return path

    with names_restored():
        for kind, thing in (
            ("data", reviews), ("data", shares), ("model", reader), ("model", three),
        ):  # fmt: skip
            partavg.register(kind, thing.__name__, thing)
        yield write


def does(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.output


def test_inputs_of_several_tensors_are_trained_by_a_recipe(recipe: Any, tmp_path: Path) -> None:
    path = recipe(data="reviews", split="by_client", model="reader")
    does("run", path, "--out", "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 4
    assert "4 workers own 10 to 20 samples" in does("split", path)
    assert "mlp" in does("run", path, "--set", "model.name=mlp", code=2)


def test_targets_without_classes_are_trained_by_a_recipe(recipe: Any, tmp_path: Path) -> None:
    path = recipe(data="shares", split="by_quantity", model="three")
    does("run", path, "--out", "run")
    assert "4 workers own" in does("split", path)
    said = does("run", path, "--set", "split.name=dirichlet", code=2)
    assert "the labels are of shape [60, 3]: give one for each sample" in said
    said = does("run", path, "--set", "split.name=by_client", code=2)
    assert "split.name = 'by_client' needs to know whose a sample is, and shares does not" in said
    said = does("run", path, "--set", "model.name=mlp", code=2)
    assert "model.name = 'mlp' cannot be made for inputs [5] and no classes" in said
    said = does("run", path, "--set", "images.crop=2", code=2)
    assert "shares has none" in said


def test_a_saved_split_names_its_workers(recipe: Any) -> None:
    path = recipe(data="reviews", split="iid", model="reader")
    does("split", path, "--save", "split.npz")
    words = ["--set", "split.name=saved", "--set", "split.path=split.npz"]
    does("run", path, *words, "--out", "run")
    said = does("run", path, *words, "--set", "training.workers=3", code=2)
    assert "splits samples over 4 workers, not 3: use training.workers = 4" in said


def test_too_many_workers_are_told_how_many_are_possible() -> None:
    said = does("run", "demo", "--set", "training.workers=100000", code=2)
    assert "100000 workers cannot own 10 of 12000 samples each: use at most 1200 workers" in said


def test_weights_of_a_recipe(recipe: Any) -> None:
    config = tasks.config(averaging={"weights": [1, 2.5, 3.0, 0.0]})
    assert config.averaging.weights == (1.0, 2.5, 3.0, 0.0)
    assert "weights = [1.0, 2.5, 3.0, 0.0]" in dump(config)
    simulation = build.simulation(config, tasks.data(), torch.device("cpu"))
    found = simulation._current.plan.weights
    assert torch.allclose(found.float(), torch.tensor([1, 2.5, 3.0, 0.0]) / 6.5)
    path = recipe(data="reviews", split="iid", model="reader")
    for wrong, sentence in {
        "[1.0]": "weights of shape [1] are not for 4 clients",
        "[1.0, 1.0, 1.0, -1.0]": "the weight of client 3 is -1.0",
    }.items():
        assert sentence in does("run", path, "--set", f"averaging.weights={wrong}", code=2)
    for wrong in ("['a']", "size", "3"):
        with pytest.raises(ValueError, match=r"averaging\.weights = "):
            parse({"averaging": {"weights": wrong}})


@pytest.mark.parametrize("name", ["by_client", "by_label", "by_quantity", "iid", "shards"])
def test_every_split_is_a_recipes(recipe: Any, name: str) -> None:
    assert "4 workers own" in does("split", recipe(data="reviews", split=name, model="reader"))
