"""Datasets by name, splits over workers, mini-batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from partavg.data.root import root as data_root
from partavg.data.source import Source
from partavg.registry import Names

DATASETS: Names[Callable[..., Dataset]] = Names(
    "dataset",
    {
        "cifar10": cifar10.load,
        "cifar100": cifar100.load,
        "fashion_mnist": fashion_mnist.load,
        "fashion_subset": fashion_subset.load,
        "femnist": femnist.load,
        "imdb": imdb.load,
        "svhn": svhn.load,
    },
)

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


def load_dataset(name: str, root: Path | None = None, **options: Any) -> Dataset:
    """A dataset by name, from its files under `root` (see docs/data.md for the default).

    >>> load_dataset("fashion_subset").shape
    (1, 28, 28)
    """
    return DATASETS.find(name)(data_root(root), **options)
