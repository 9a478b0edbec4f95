"""What cannot start is refused before it starts."""

import tomllib
from pathlib import Path

import pytest
import torch
from tests import tasks
from tests.outside import names_restored
from tests.tasks import KEPT, NOVA, SHRINKING
from torch import Tensor, nn

import partavg
from partavg import build
from partavg.build import check
from partavg.config_toml import dump, parse


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"averaging": {"interval": 10, "parts": 4}}, "use 1, 2, 5 or 10"),
        ({"averaging": {"partition": "layer"}}, "cannot fill 4 parts: the model has 3 layers"),
        ({"averaging": {"partition": "whole", "parts": 4}}, "the whole model is one part"),
        ({"training": {"workers": 121}}, "121 workers cannot share 120 samples"),
        ({"split": {"alpha": 0}}, "alpha 0.0 is not a number above 0"),
        ({"solver": {"momentum": 2.0}}, r"momentum 2.0 is outside \[0, 1\)"),
        ({"engine": {"device": "gpu"}}, "engine.device = 'gpu' cannot be used"),
        ({"engine": {"device": "meta"}}, "engine.device = 'meta' cannot be used"),
        ({"model": {"hidden": [4, 0]}}, "a hidden layer of width 0 is no layer"),
        ({"split": {"alpha": 0.01, "minimum": 0}}, "owns no samples"),
        ({**KEPT, "solver": NOVA}, "compares models with the last average"),
        (
            {"pace": {"name": "fixed", "counts": [2]}, "solver": {**NOVA, "name": "vrl_sgd"}},
            "needs workers that take the same steps",
        ),
        ({**KEPT, **SHRINKING}, "cuts models anew"),
        ({"averaging": {"delay": 2, "buffers": "every"}}, "overtake each other"),
        (
            {"solver": {**NOVA, "name": "fedavgm", "base": {"name": "diloco"}}},
            "must be the topmost",
        ),
        (
            {**KEPT, "solver": {**NOVA, "name": "fedprox", "base": {"name": "scaffold"}}},
            "compares models with the last average",
        ),
        ({"averaging": {"delay": 4}}, "delay 4 is not below the interval 4"),
        ({"averaging": {"offsets": [1, 5]}}, "offset 5 is no step of an interval of 4"),
        ({"averaging": {"partition": [["1"], ["nothing"]]}}, "'nothing', which matches no"),
        ({"averaging": {"partition": "fresh", "delay": 1}}, "lets a column be drawn again"),
        ({"averaging": {"partition": "fresh"}, "solver": NOVA}, "counts the steps since a part"),
        ({"averaging": {"mix": 0.5}, "solver": NOVA}, "compares models with the last average"),
        ({"averaging": {"mix": 1.0}}, "averaging.mix = 1.0"),
        ({"adapt": {"name": "post_local"}}, "give adapt.until"),
        ({"adapt": {"name": "fedlama"}, "averaging": {"parts": 1}}, "needs parts to tell apart"),
        ({"images": {"crop": 2}}, "images.crop and images.flip are for images"),
        (
            {"split": {"name": "writer", "alpha": None, "minimum": None}},
            "split.name = 'writer' needs to know whose a sample is",
        ),
        ({"lr_schedule": {"name": "step", "at": [9, 3]}}, "name them in rising order"),
    ],
)
def test_what_cannot_start_is_found_before_it_starts(
    tmp_path: Path, sections: dict, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        check(tasks.config(**sections), tasks.data())
    with pytest.raises(ValueError, match=sentence):
        tasks.run(tmp_path / "run", **sections)
    assert not (tmp_path / "run").exists()


class Frozen(nn.Module):
    """A user's model, a part of which is in evaluation mode by itself."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(inputs).eval(), nn.Linear(inputs, classes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(self.norm(x))


def test_trying_a_model_leaves_it_as_it_was() -> None:
    with names_restored():
        partavg.register("model", "frozen", lambda shape, classes: Frozen(*shape, classes))
        given = tasks.config(model={"name": "frozen", **dict.fromkeys(tasks.TINY["model"])})
        made = build._model(given, tasks.data())
    assert isinstance(made, Frozen)
    assert made.training
    assert not made.norm.training
    assert made.calls == 0


STREAMS = [
    {"interval": 6, "partition": "strided", "offsets": [1, 4], "delay": 2, "mix": 0.5},
    {"interval": 5, "partition": [["1"], ["2.*", "5.*"]], "offsets": [0, 3]},
    {"interval": 4, "partition": "fresh"},
]


def made(averaging: dict) -> partavg.Simulation:
    return build.simulation(tasks.config(averaging=averaging), tasks.data(), torch.device("cpu"))


@pytest.mark.parametrize("averaging", STREAMS)
def test_streams_train_resume_and_are_written_down(averaging: dict) -> None:
    config = tasks.config(averaging=averaging)
    assert parse(tomllib.loads(dump(config))) == config
    check(config, tasks.data())
    whole, half, resumed = (made(averaging) for _ in range(3))
    for _ in whole.train(9):
        pass
    for _ in half.train(5):
        pass
    resumed.load(half.state())
    for _ in resumed.train(9):
        pass
    assert torch.equal(whole.workers.params, resumed.workers.params)
    assert whole.workers.bytes == resumed.workers.bytes
    with pytest.raises(ValueError, match="the state was saved with averaging"):
        made({"interval": 4}).load(half.state())
