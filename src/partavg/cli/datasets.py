"""Datasets for a command that runs many recipes."""

from pathlib import Path

from partavg.config import Component, create
from partavg.data.dataset import Dataset


class Datasets:
    """Loads datasets, and keeps the last one: rows of one dataset follow each other."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._last: tuple[Component, Dataset] | None = None

    def __call__(self, wanted: Component) -> Dataset:
        """The dataset that a recipe wants."""
        if self._last is None or self._last[0] != wanted:
            self._last = wanted, create("data", wanted, self._root)
        return self._last[1]
