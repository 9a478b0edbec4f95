"""Columns of samples out of what holds them: at once, or item by item, which is done once."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from partavg.data.rows import Choose, Key, Rows, shown

_TOGETHER = 1024  # rows of a table that are read together
_TWICE = 8  # items that are read twice, to see whether they are random
_FROZEN = (
    "the dataset gives another sample every time, but is read once, so that what it draws stays: "
    "take the random transform out of it, and give Simulation a transform"
)

Columns = dict[Key, Any]
"""By name or place; a column is a tensor, an array, a list, or a tuple or dict of those."""


def columns(given: Any, choose: Choose, dtype: torch.dtype | None) -> Columns:
    """The columns that are wanted of all that is given."""
    if _is_table(given):
        return _table(given, choose, dtype)
    if isinstance(given, DataLoader):
        return _loader(given, choose, dtype)
    if isinstance(given, IterableDataset):
        raise _endless(given)
    at_once = _at_once(given)
    if at_once is not None:
        return {key: at_once[key] for key in choose(list(at_once))}
    if isinstance(given, Tensor | np.ndarray | str | bytes) or not _is_map(given):
        raise ValueError(
            f"samples cannot be a {type(given).__name__}: give (inputs, targets), a Dataset, a "
            f"DataLoader or a dict of columns"
        )
    return _items(given, choose, dtype)


def _at_once(given: Any) -> Columns | None:
    """All columns, where they need not be read item by item."""
    if isinstance(given, TensorDataset) and type(given).__getitem__ is TensorDataset.__getitem__:
        return dict(enumerate(given.tensors))
    if isinstance(given, Subset) and type(given).__getitem__ is Subset.__getitem__:
        inside = isinstance(given.dataset, TensorDataset | Subset)
        whole = _at_once(given.dataset) if inside else None
        rows = torch.as_tensor(given.indices, dtype=torch.long)
        return whole and {key: tensor[rows] for key, tensor in whole.items()}
    if isinstance(given, Mapping):
        if not given:
            raise ValueError("there are no columns: give inputs and targets")
        return {str(key): column for key, column in given.items()}
    if isinstance(given, tuple) or (isinstance(given, list) and not _are_items(given)):
        if len(given) < 2:
            raise ValueError(f"samples of {len(given)} parts: give (inputs, targets)")
        return dict(enumerate(given))
    return None


def _are_items(given: list[Any]) -> bool:
    return bool(given) and all(isinstance(item, tuple | Mapping) for item in given)


def _is_map(given: Any) -> bool:
    return hasattr(given, "__len__") and hasattr(given, "__getitem__")


def _items(dataset: Any, choose: Choose, dtype: torch.dtype | None) -> Columns:
    """Read all items of a Dataset."""
    count = _length(dataset)
    _check_fixed(lambda: [_item(dataset, place) for place in range(min(count, _TWICE))])
    rows = Rows(count, choose, dtype)
    for item in shown((_item(dataset, place) for place in range(count)), rows, count):
        rows.add(item)
    return rows.columns()


def _item(dataset: Any, place: int) -> Any:
    try:
        return dataset[place]
    except Exception as error:
        text = str(error) or type(error).__name__
        raise ValueError(
            f"sample {place} of the {type(dataset).__name__} cannot be read: {text}"
        ) from error


def _length(dataset: Any) -> int:
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError):
        raise _endless(dataset) from None
    if not count:
        raise ValueError("there are no samples: give at least one")
    return count


def _endless(dataset: Any) -> ValueError:
    return ValueError(
        f"a {type(dataset).__name__} has no length and no places: give a dataset with __len__ and "
        f"__getitem__"
    )


def _loader(loader: DataLoader[Any], choose: Choose, dtype: torch.dtype | None) -> Columns:
    """The dataset of a DataLoader: in its order, with its `collate_fn` and its processes."""
    if isinstance(loader.dataset, IterableDataset):
        raise _endless(loader.dataset)
    if loader.batch_sampler is None:
        raise ValueError(
            "a DataLoader with batch_size=None says not what a sample is: give its dataset"
        )
    if not _deals_all(loader):
        warnings.warn(
            f"the DataLoader's {type(loader.sampler).__name__} is not used: all samples of its "
            f"dataset are, drawn as the seed says; choose samples with a Subset or the split",
            stacklevel=5,
        )
    plain = loader.collate_fn is default_collate
    if plain and not loader.num_workers:
        return columns(loader.dataset, choose, dtype)
    count = _length(loader.dataset)
    again = DataLoader(
        loader.dataset,
        batch_size=loader.batch_size or 64,
        num_workers=loader.num_workers,
        collate_fn=_as_they_are if plain else loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )
    rows = Rows(count, choose, dtype)
    for batch in shown(_batches(again), rows, count):
        if plain:
            for item in batch:
                rows.add(item)
        else:
            rows.extend(batch)
    return rows.columns()


def _batches(loader: DataLoader[Any]) -> Iterator[Any]:
    try:
        yield from loader
    except ValueError:
        raise
    except Exception as error:
        text = (str(error) or type(error).__name__).splitlines()[-1]
        raise ValueError(f"the DataLoader's dataset cannot be read: {text}") from error


def _as_they_are(items: list[Any]) -> list[Any]:
    return items


def _deals_all(loader: DataLoader[Any]) -> bool:
    """Whether a DataLoader gives all samples once, in order or shuffled."""
    sampler = loader.sampler
    if loader.batch_size is None:  # it has a batch_sampler of its own
        return False
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler)
    return type(sampler) is SequentialSampler


def _is_table(given: Any) -> bool:
    """Whether it is of Hugging Face's package, which need not be installed."""
    return type(given).__module__.partition(".")[0] == "datasets"


def _table(given: Any, choose: Choose, dtype: torch.dtype | None) -> Columns:
    """Read a Hugging Face dataset, some rows at a time."""
    if isinstance(given, Mapping):
        known = ", ".join(map(repr, given))
        raise ValueError(f"there are several datasets: choose one of {known}")
    if not _is_map(given):
        raise _endless(given)
    count = _length(given)
    form = given.format["type"]
    wanted = choose(list(given.column_names)) if form != "custom" else []
    table = given.select_columns(wanted) if wanted else given
    table = table if form else table.with_format("torch")
    if form == "custom":
        _check_fixed(lambda: [table[place] for place in range(min(count, _TWICE))])
    rows = Rows(count, choose, dtype)
    pieces = (table[start : start + _TOGETHER] for start in range(0, count, _TOGETHER))
    for piece in shown(pieces, rows, count):
        rows.extend({name: _stacked(column, name) for name, column in piece.items()})
    return rows.columns()


def _stacked(column: Any, name: str) -> Any:
    """Some rows of a column as one tensor, which they are not if their shapes differ."""
    if not (isinstance(column, list) and all(isinstance(row, Tensor) for row in column)):
        return column
    if len({row.shape for row in column}) > 1:
        raise ValueError(
            f"column {name!r} differs in shape from sample to sample: pad or crop it to one"
        )
    return torch.stack(column)


def _check_fixed(read: Callable[[], list[Any]]) -> None:
    """Warn if the same items are not the same when they are read again."""
    if not _same(read(), read()):
        warnings.warn(_FROZEN, stacklevel=6)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool(((one == other) | (one != one)).all())
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and bool(((one == other) | (one != one)).all())
    return True
