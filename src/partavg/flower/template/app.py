"""Federated Fashion-MNIST with partial averaging: put your own model, data and loss here."""

from functools import cache

from flwr.app import Context
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import Dataset, dirichlet, load_dataset, split_alike
from partavg.flower import client_app, server_app


def model() -> nn.Module:
    """The model; the server decides how it begins."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


@cache
def images() -> Dataset:
    """Images that come with partavg, read once in a process."""
    return load_dataset("fashion_subset")


def share(context: Context) -> tuple[Tensor, Tensor]:
    """Which images this client has, to train and to test on."""
    labels, test_labels = images().train[1], images().test[1]
    split = dirichlet(labels, int(context.run_config["training.workers"]), seed=0)
    client = int(context.node_config["partition-id"])
    return split[client], split_alike(labels, split, test_labels)[client]


def data(context: Context) -> tuple[Tensor, Tensor]:
    """What this client trains on: here a share of the images."""
    mine, _ = share(context)
    inputs, targets = images().train
    return inputs[mine] / 255, targets[mine]


def test(context: Context) -> tuple[Tensor, Tensor]:
    """What this client measures averaged models on; sums and counts leave it. None: no samples."""
    _, mine = share(context)
    inputs, targets = images().test
    return inputs[mine] / 255, targets[mine]


client = client_app(model, F.cross_entropy, data, test=test)
server = server_app(model, F.cross_entropy)  # and samples to test on, if the server has any
