"""What cannot start is refused before it starts."""

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
