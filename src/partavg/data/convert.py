"""Samples from whatever holds some: tensors, arrays, Datasets, DataLoaders, columns by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partavg.data import read
from partavg.data.arrays import tensor_of
from partavg.data.rows import Key
from partavg.data.samples import Samples
from partavg.sentences import shown

Columns = str | int | Sequence[str] | Sequence[int]
"""The name, or the place, of a column; a list of them where there are several."""

_TARGETS = ("label", "labels", "target", "targets")


def as_samples(
    given: Any,
    *,
    inputs: Columns | None = None,
    targets: Columns | None = None,
    dtype: torch.dtype | None = None,
) -> Samples:
    """Inputs and targets out of whatever holds some.

    That is a tuple of tensors or NumPy arrays, the targets last (files that NumPy maps are not
    copied); a dict of them; a map-style torch `Dataset`, a `DataLoader` or a Hugging Face dataset,
    which are read once. Of columns with names, `label`, `labels`, `target` or `targets` is the
    target, of those without the last; `inputs` and `targets` choose others, by name or place. One
    column is a tensor, several are a dict, which the model gets by name, or without names a tuple.
    NumPy's float64, its default, becomes float32, unless `dtype` or torch's default is float64.

    >>> as_samples((np.zeros((4, 2)), [0, 1, 0, 1])).inputs.dtype
    torch.float32
    >>> columns = {"ids": np.ones((3, 5), int), "mask": np.ones((3, 5), bool), "label": [0, 1, 1]}
    >>> list(as_samples(columns).inputs), as_samples(columns, inputs="ids").inputs.shape
    (['ids', 'mask'], torch.Size([3, 5]))
    """
    if not isinstance(dtype, torch.dtype | None):
        raise ValueError(f"dtype {shown(dtype)} is none: give torch's, like torch.float32")
    if all(isinstance(getattr(given, side, None), Samples) for side in ("train", "test")):
        raise ValueError("this is a whole dataset: give its samples, data.train or data.test")
    chosen = inputs is not None or targets is not None
    if isinstance(given, Samples) and not chosen and given.of_tensors:
        given.check()
        return _with_long_labels(given)  # whoever made it looked at its numbers

    def wanted(keys: list[Key]) -> list[Key]:
        return [key for side in _choice(keys, inputs, targets) for key in _listed(side)]

    columns = read.columns(given, wanted, dtype)
    sides = _choice(list(columns), inputs, targets)
    samples = Samples(
        *(
            _side(columns, keys, what, dtype)
            for what, keys in zip(("inputs", "targets"), sides, strict=True)
        )
    )
    samples.check()
    samples.check_numbers()
    return _with_long_labels(samples)


def _choice(
    keys: list[Key], inputs: Columns | None, targets: Columns | None
) -> tuple[Columns, Columns]:
    """Which columns are inputs, which are targets."""
    if not keys:
        raise ValueError("samples of 0 parts: give inputs and targets")
    known = ", ".join(map(repr, keys))
    for name in (*_listed(inputs), *_listed(targets)):
        if name not in keys:
            raise ValueError(f"there is no column {name!r}: use {known}")
    if targets is None:
        free = [key for key in keys if key not in _listed(inputs)]
        last = [key for key in free if isinstance(key, int)][-1:]
        found = [key for key in free if key in _TARGETS] or last
        if len(found) != 1:
            raise ValueError(
                f"which of the columns {known} is the target? Name it, for example by "
                f"partavg.as_samples(…, targets={keys[-1]!r})"
            )
        targets = found[0]
    if inputs is None:
        rest: Any = [key for key in keys if key not in _listed(targets)]
        if not rest:
            raise ValueError(f"the only column is {known}: give inputs and targets")
        inputs = rest[0] if len(rest) == 1 else rest
    return inputs, targets


def _listed(columns: Columns | None) -> list[Key]:
    if columns is None:
        return []
    listed = [columns] if isinstance(columns, str | int) else columns
    if not isinstance(listed, list | tuple) or not all(
        isinstance(key, str | int) for key in listed
    ):
        raise ValueError(
            f"column {shown(columns)} is none: give a name or a place, or a list of them"
        )
    return list(listed)


def _side(columns: Mapping[Key, Any], keys: Columns, what: str, dtype: torch.dtype | None) -> Any:
    """The inputs, or the targets, as tensors: one, a tuple, or a dict."""
    if isinstance(keys, str | int):
        return _tree(columns[keys], keys, what, dtype)
    found = {key: _tree(columns[key], key, what, dtype) for key in keys}
    if not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ValueError(
            f"the {what} hold tensors within tuples within tuples: give one tuple or one dict"
        )
    return found if all(isinstance(key, str) for key in found) else tuple(found.values())


def _tree(column: Any, key: Key, what: str, dtype: torch.dtype | None) -> Any:
    """A column, which may hold several tensors."""
    if isinstance(column, Mapping):
        return {str(name): _column(value, str(name), what, dtype) for name, value in column.items()}
    if isinstance(column, tuple):
        return tuple(_column(value, key, what, dtype) for value in column)
    return _column(column, key, what, dtype)


def _column(value: Any, key: Key, what: str, dtype: torch.dtype | None) -> Tensor:
    """A tensor with a row per sample."""
    called = f"the values of {key!r}" if isinstance(key, str) else f"the {what}"
    if isinstance(value, list) and any(isinstance(row, Tensor | np.ndarray) for row in value):
        raise ValueError(
            f"{called} are a list of tensors: use a tuple for several inputs, torch.stack for "
            f"samples"
        )
    if isinstance(value, tuple | Mapping):
        raise ValueError(
            f"{called} lie in tuples within tuples: give one tuple or one dict of tensors"
        )
    return tensor_of(value, called, dtype)


def _with_long_labels(samples: Samples) -> Samples:
    """With labels as int64, which losses want."""
    labels = samples.labels
    return samples if labels is None else samples._replace(targets=labels.long())
