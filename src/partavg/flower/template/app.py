"""Federated Fashion-MNIST with partial averaging: put your own model, data and loss here."""

from functools import cache

from flwr.app import Context
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import Dataset, dirichlet, load_dataset
from partavg.flower import client_app, server_app


def model() -> nn.Module:
    """The model; the server decides how it begins."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


@cache
def images() -> Dataset:
    """Images that come with partavg, read once in a process."""
    return load_dataset("fashion_subset")


def data(context: Context) -> tuple[Tensor, Tensor]:
    """What this client owns: here a share of the images."""
    inputs, targets = images().train
    clients = int(context.run_config["training.workers"])
    mine = dirichlet(targets, clients, seed=0)[int(context.node_config["partition-id"])]
    return inputs[mine] / 255, targets[mine]


def test() -> tuple[Tensor, Tensor]:
    """What the server has to evaluate the averaged model on; leave it out if it has nothing."""
    inputs, targets = images().test
    return inputs / 255, targets


client = client_app(model, F.cross_entropy, data)
server = server_app(model, F.cross_entropy, test)
