"""What a simulation is given wrongly is said in one sentence."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import partavg
from partavg import SGD, Participation, Schedule, Simulation, iid
from partavg.backends.client_weights import client_weights
from partavg.flower.settings import Settings
from partavg.solvers.drift import check_base

X, Y = torch.randn(40, 3), torch.arange(40) % 2


def made(**changes: Any) -> Simulation:
    given = {
        "model": nn.Linear(3, 2), "loss": F.cross_entropy, "samples": (X, Y),
        "split": iid(Y, 4, 0), "schedule": Schedule.partial(2), "lr": 0.1, "engine": "looped",
    } | changes  # fmt: skip
    return Simulation(**given)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": nn.Linear}, r"model Linear is no torch.nn.Module: call it"),
        ({"model": "mlp"}, r"model 'mlp' is no torch.nn.Module: give one"),
        ({"loss": nn.CrossEntropyLoss}, r"loss CrossEntropyLoss is a class: call it"),
        ({"loss": "mse"}, r"loss 'mse' is no function of outputs and targets"),
        ({"loss": lambda outputs: 0}, r"is no function of outputs and targets \(too many"),
        ({"solver": torch.optim.SGD([torch.zeros(1)])}, r"solver SGD is torch's.*use partavg.SGD"),
        ({"solver": "sgd"}, r"solver 'sgd' is none: give the solver itself, like partavg.SGD"),
        ({"solver": SGD}, r"solver SGD is a class: call it, SGD\(\)"),
        ({"solver": 3}, r"solver 3 is none"),
        ({"lr": "0.1"}, r"lr is '0.1': give a number, or a function of the step"),
        ({"lr": float("nan")}, r"lr is nan: give a number from 0"),
        ({"lr": float("inf")}, r"lr is inf: give"),
        ({"lr": -0.1}, r"lr is -0.1: give a number from 0"),
        ({"lr": None}, r"lr is None: give"),
        ({"lr": True}, r"lr is True: give"),
        ({"lr": torch.ones(2)}, r"lr is Tensor: give"),
        ({"lr": lambda step: "fast"}, r"lr at step 1 is 'fast': give"),
        ({"lr": lambda: 0.1}, r"is no function of the step: too many positional arguments"),
        ({"lr": partavg.Cosine}, r"lr Cosine is a class"),
        ({"batch": 0}, r"batch 0 is no whole number from 1"),
        ({"batch": 4.0}, r"batch 4.0 is no whole number from 1"),
        ({"batch": "4"}, r"batch '4' is no whole number"),
        ({"seed": 1.5}, r"seed 1.5 is no whole number from 0"),
        ({"seed": -1}, r"seed -1 is no whole number from 0"),
        ({"seed": None}, r"seed None is no whole number"),
        ({"delay": 0.5}, r"delay 0.5 is no whole number"),
        ({"chunk": -1}, r"chunk = -1 is no number of workers"),
        ({"schedule": 4}, r"schedule 4 is none: use partavg.Schedule.partial\(4\)"),
        ({"schedule": "partial"}, r"schedule 'partial' is none"),
        ({"participation": 0.5}, r"participation 0.5 is none: use partavg.Participation"),
        ({"pace": 3}, r"pace 3 is no function of the step"),
        ({"adapt": "adacomm"}, r"adapt 'adacomm' is none"),
        ({"adapt": partavg.AdaComm}, r"adapt AdaComm is none"),
        ({"transform": lambda inputs: inputs}, r"is no function of inputs and keys"),
        ({"transform": "flip"}, r"transform 'flip' is no function"),
        (
            {"engine": "turbo"},
            r"engine = 'turbo' is not known: use auto, looped, threads, vmapped, fused",
        ),
        ({"precision": "fp8"}, r"precision = 'fp8' is not known"),
        ({"store": "disk"}, r"store 'disk' is not known: use auto, device, host"),
        ({"device": "gpu"}, r"device 'gpu' cannot be used"),
        ({"device": "meta"}, r"device 'meta' cannot be used"),
        ({"device": 1.5}, r"device 1.5 cannot be used"),
        ({"weights": "size"}, r"weights 'size' is not known: use uniform or samples, or a number"),
        ({"weights": 3}, r"weights 3 is not known"),
        ({"weights": [1, 2, 3]}, r"weights of shape \[3\] are not for 4 clients"),
        ({"weights": [[1, 2, 3, 4]]}, r"weights of shape \[1, 4\] are not for 4 clients"),
        ({"weights": [1, 2, 3, -1]}, r"the weight of client 3 is -1.0: give numbers from 0"),
        ({"weights": [1, float("nan"), 3, 1]}, r"the weight of client 1 is nan"),
        ({"weights": [1, 2, float("inf"), 1]}, r"the weight of client 2 is inf"),
        ({"max_weight": 0.5}, "max_weight 0.5 is how many times the median weight a client may"),
        ({"max_weight": "2"}, "max_weight '2' is no number"),
        ({"weights": [0, 0, 0, 0]}, r"all weights are 0"),
        ({"weights": ["a", 1, 1, 1]}, r"are no numbers: give one per client"),
        ({"samples": (X[:5], Y)}, r"differ in length"),
        ({"samples": (X, torch.zeros(40, 7))}, r"cannot be computed on a batch of inputs"),
        ({"model": nn.Linear(9, 2)}, r"inputs \[4, 32, 3\] and targets \[4, 32\], by worker and"),
        ({"split": [[0.5], [1]]}, r"worker 0 owns indices of float64"),
    ],
)
def test_mistakes_are_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        made(**changes)
    assert "\n" not in str(caught.value)


def test_rates_are_looked_at_when_they_are_used() -> None:
    simulation = made(lr=lambda step: 0.1 if step < 3 else float("nan"))
    with pytest.raises(ValueError, match="lr at step 3 is nan"):
        list(simulation.train(5))
    assert simulation.workers.step == 2


@pytest.mark.parametrize("lr", [0.1, np.float32(0.1), torch.tensor(0.1), lambda step: 0.1, 0, 1])
def test_numbers_of_all_kinds_are_rates(lr: Any) -> None:
    list(made(lr=lr, batch=np.int64(4), seed=np.int32(3)).train(2))


def test_weights_of_a_list_are_shares() -> None:
    split = [torch.arange(1), torch.arange(2), torch.arange(5)]
    for given in ([1, 2, 5], (1.0, 2.0, 5.0), np.array([1, 2, 5]), torch.tensor([2, 4, 10])):
        assert torch.equal(client_weights(given, split), client_weights("samples", split))
    assert client_weights([0, 1, 1], split).tolist() == [0, 0.5, 0.5]


def test_weights_are_those_given_to_the_last_digit_and_of_any_size() -> None:
    split = [torch.arange(1)] * 2
    assert client_weights([0.1, 0.9], split).tolist() == [0.1, 0.9]
    assert client_weights([1e308, 1e308], split).tolist() == [0.5, 0.5]
    assert client_weights([1e-320, 1e-320], split).tolist() == [0.5, 0.5]


def test_a_cap_leaves_nobody_more_than_so_many_medians() -> None:
    split = [torch.arange(3)] * 4
    assert client_weights([1, 1, 2, 1e12], split, 2).tolist() == [1 / 6, 1 / 6, 2 / 6, 2 / 6]
    assert client_weights([1, 1, 1e12, 1e12], split, 1).tolist() == [0.25] * 4
    assert client_weights([0, 0, 0, 5], split, 1).tolist() == [0, 0, 0, 1]
    for cap in (1e9, None):
        assert torch.equal(
            client_weights([1, 3, 2, 9], split, cap), client_weights([1, 3, 2, 9], split)
        )


def test_weights_that_are_nothing_beside_others_cannot_be_drawn_alone() -> None:
    with pytest.raises(ValueError, match="3 clients have weight 0"):
        made(weights=[1e300, 1, 1, 1], participation=Participation(clients=4, active=2, every=1))


def test_a_list_weighs_as_its_policy_does() -> None:
    split = [torch.arange(10), torch.arange(10, 40)]

    def trained(**options: Any) -> torch.Tensor:
        torch.manual_seed(0)
        simulation = made(model=nn.Linear(3, 2).double(), samples=(X.double(), Y), split=split,
                          **options)  # fmt: skip
        list(simulation.train(6))
        return simulation.workers.params

    assert torch.equal(trained(weights=[1, 3]), trained(weights="samples"))
    assert not torch.equal(trained(weights=[1, 3]), trained())
    half = Participation(2, 1, 2)
    assert torch.equal(
        trained(weights=[1, 3], participation=half), trained(weights="samples", participation=half)
    )


def test_clients_that_count_nothing_must_not_be_alone() -> None:
    with pytest.raises(ValueError, match="2 clients have weight 0, so that none of 2 active ones"):
        made(weights=[0, 0, 1, 1], participation=Participation(4, 2, 2))
    list(made(weights=[0, 1, 1, 1], participation=Participation(4, 2, 2)).train(4))
    list(made(weights=[0, 0, 1, 1]).train(4))


def test_weights_of_a_federation() -> None:
    base = {"training.workers": 3, "training.steps": 12, "averaging.interval": 4}
    rules = Settings.read({**base, "averaging.weights": "[1.0, 2.0, 3.0]"}).rules(tests=True)
    assert rules.weights == (1.0, 2.0, 3.0)
    for wrong, sentence in {
        "[1.0, 2.0]": "not for 3 clients",
        "[0.0, 1.0, 1.0]": "has a 0",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            Settings.read({**base, "averaging.weights": wrong})


def test_images_follow_the_simulation() -> None:
    images = torch.randint(0, 256, (40, 1, 2, 2), dtype=torch.uint8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    simulation = made(model=model, samples=(images, Y), transform=partavg.Images.fit(images))
    list(simulation.train(2))


def test_controls_need_a_base_that_says_how_far_it_moves() -> None:
    check_base(SGD(0.9))
    with pytest.raises(ValueError, match="base Adam does not say how far a gradient moves"):
        check_base(partavg.adam())


def test_a_class_that_the_model_has_no_output_for_is_a_sentence() -> None:
    classes = Y.clone()
    classes[30] = 7
    with pytest.raises(ValueError, match=r"met a class, or an index, that the model has no place"):
        list(made(samples=(X, classes), batch=1).train(60))
    with pytest.raises(
        ValueError, match=r"on inputs \[40, 3\] and targets \[40\]: Target 7 is out"
    ):
        made().evaluate((X, classes))
    with pytest.raises(
        ValueError, match=r"cannot be computed on inputs \[40, 2\] and targets \[40\]"
    ):
        made().evaluate((X[:, :2], Y))
