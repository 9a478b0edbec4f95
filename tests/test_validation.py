"""Validation samples: held out of the training data, judged in place of the test set."""

import json

import pytest
import torch

from partavg import build
from partavg.config_toml import parse
from partavg.data.dataset import Dataset
from partavg.folder import RunFolder
from partavg.recipe_run import Run


def dataset(n: int = 100) -> Dataset:
    x = torch.arange(2.0 * n).view(n, 2)
    y = torch.arange(n) % 4
    return Dataset((x, y), (-x[:40] - 1, y[:40]), 4, writers=torch.arange(n) % 10)


def config(**training: object):
    tables = {"training": {"workers": 4, "batch": 5, "steps": 6, **training}}
    tables["split"], tables["model"] = {"name": "iid"}, {"name": "mlp", "hidden": [4]}
    tables["averaging"] = {"interval": 2}
    return parse(tables)


def test_no_sample_is_trained_on_and_judged():
    data = dataset()
    held = data.held_out(0.2)
    trained, judged = held.train.inputs[:, 0].tolist(), held.test.inputs[:, 0].tolist()
    assert len(judged) == 20
    assert sorted(trained + judged) == data.train.inputs[:, 0].tolist()
    assert (held.test.inputs >= 0).all()  # none of the test set


def test_targets_and_writers_stay_with_their_samples():
    held = dataset().held_out(0.25)
    for samples, writers in ((held.train, held.writers), (held.test, held.test_writers)):
        number = (samples.inputs[:, 0] / 2).long()
        assert torch.equal(samples.targets, number % 4)
        assert torch.equal(writers, number % 10)


def test_the_same_are_held_out_for_every_seed_and_the_budget_stays():
    data = dataset()
    one, other = (build.scaled(config(validation=0.2, seed=seed), data) for seed in (0, 7))
    assert torch.equal(one.test.inputs, other.test.inputs)
    whole, held = (config(validation=share) for share in (0.0, 0.2))
    assert build.steps(whole, data) == build.steps(held, data)


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_a_share_that_holds_nothing_or_leaves_nothing_is_refused(share: float):
    with pytest.raises(ValueError, match="no validation set"):
        dataset().held_out(share)


def test_a_run_that_is_judged_on_validation_samples_says_so(tmp_path):
    for share in (0.0, 0.2):
        run = Run(
            config(validation=share), dataset(), RunFolder(tmp_path / str(share)),
            resume=False, force=False,
        )  # fmt: skip
        list(run)
    whole, held = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("0.0", "0.2")
    )
    assert "judged_on" not in whole
    assert held["judged_on"] == "validation"
    assert held["test_loss"] != whole["test_loss"]


def test_the_best_model_by_the_test_set_is_warned_of(tmp_path):
    tables = {
        "training": {"workers": 4, "batch": 5, "steps": 2},
        "checkpoints": {"best": "accuracy"},
    }
    tables["metrics"] = {"evaluate_every": 1}
    tables["averaging"] = {"interval": 2}
    with pytest.warns(UserWarning, match="chosen on the test set"):
        Run(parse(tables), dataset(), RunFolder(tmp_path / "a"), resume=False, force=False)
    tables["training"]["validation"] = 0.2
    Run(parse(tables), dataset(), RunFolder(tmp_path / "b"), resume=False, force=False)
