"""Datasets by name, splits over workers, mini-batches."""

from collections.abc import Callable

from partavg.data import (
    cifar10,
    cifar100,
    fashion_mnist,
    fashion_subset,
    femnist,
    imdb,
    svhn,
)
from partavg.data.dataset import Dataset
from partavg.data.source import Source

DATASETS: dict[str, Callable[..., Dataset]] = {
    "cifar10": cifar10.load,
    "cifar100": cifar100.load,
    "fashion_mnist": fashion_mnist.load,
    "fashion_subset": fashion_subset.load,
    "femnist": femnist.load,
    "imdb": imdb.load,
    "svhn": svhn.load,
}

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        cifar10.SOURCE,
        cifar100.SOURCE,
        fashion_mnist.SOURCE,
        femnist.SOURCE,
        imdb.SOURCE,
        svhn.SOURCE,
        svhn.EXTRA,
    )
}
"""The files that do not come with the package."""
