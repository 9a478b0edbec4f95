"""Datasets by name, splits over workers, mini-batches."""

import os
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from partavg.core.arguments import check_kind
from partavg.data import (
    cifar10,
    cifar100,
    fashion_mnist,
    fashion_subset,
    femnist,
    imdb,
    imdb_text,
    king_james,
    svhn,
    text,
)
from partavg.data.dataset import Dataset
from partavg.data.root import root as data_root
from partavg.data.source import Source
from partavg.registry import Names, mismatch

_MODULES: dict[str, ModuleType] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "fashion_mnist": fashion_mnist,
    "fashion_subset": fashion_subset,
    "femnist": femnist,
    "imdb": imdb,
    "imdb_text": imdb_text,
    "king_james": king_james,
    "svhn": svhn,
    "text": text,
}
"""Each has a function `load`, and a `Source` for the files that do not come with the package."""

DATASETS: Names[Callable[..., Dataset]] = Names(
    "data", {name: module.load for name, module in _MODULES.items()}
)

SOURCES: dict[str, Source] = {
    value.name: value
    for module in _MODULES.values()
    for value in vars(module).values()
    if isinstance(value, Source)
}
"""The files that do not come with the package."""


def load_dataset(name: str, root: str | Path | None = None, **options: Any) -> Dataset:
    """A dataset by name, from its files under `root` (see docs/data.md for the default).

    Options are those of recipes; files may be named by a `Path`, too.

    >>> load_dataset("fashion_subset").shape
    (1, 28, 28)
    """
    if root is not None:
        check_kind("root", root, str | Path, "the path of a folder")
    load, folder = DATASETS.find(name), data_root(None if root is None else Path(root))
    if problem := mismatch(load, folder, **options):
        raise ValueError(f"data {name!r} cannot be loaded so: {problem}")
    return load(folder, **{option: _as_in_recipes(value) for option, value in options.items()})


def _as_in_recipes(value: Any) -> Any:
    """Paths as texts, lists as tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(_as_in_recipes, value))
    return os.fspath(value) if isinstance(value, PathLike) else value
