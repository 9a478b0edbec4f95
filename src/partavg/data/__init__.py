"""Datasets by name, splits over workers, mini-batches."""

from collections.abc import Callable

from partavg.data import fashion_subset
from partavg.data.dataset import Dataset

DATASETS: dict[str, Callable[..., Dataset]] = {"fashion_subset": fashion_subset.load}
