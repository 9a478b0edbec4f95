"""Columns that are filled row by row."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from partavg.data.arrays import tensor_of
from partavg.data.memory import check_room, readable

if TYPE_CHECKING:  # few need it, and it takes as long to import as all else here
    from rich.console import Console
    from rich.progress import Progress

Key = str | int
Path = tuple[Key, ...]
"""Where a tensor is in an item: the name or the place, perhaps of another one within."""
Choose = Callable[[list[Key]], list[Key]]
"""Of all columns, those that are wanted."""

_PATIENCE = 1.0  # seconds that nobody minds

Item = TypeVar("Item")


class Rows:
    """So many samples, put in place as they are read; the first says what they consist of."""

    def __init__(self, count: int, choose: Choose, dtype: torch.dtype | None) -> None:
        self._count, self._choose, self._dtype = count, choose, dtype
        self._columns: dict[Path, Tensor] = {}
        self._keys: list[Key] = []
        self.filled = 0

    def __str__(self) -> str:
        needed = sum(column.nbytes for column in self._columns.values())
        return f"reading {self._count:,} samples, {readable(needed)}"

    def add(self, item: Any) -> None:
        """Put one sample in place."""
        self._put(self._found(item, lambda tensor: tensor[None]))

    def extend(self, items: Any) -> None:
        """Put samples in place that are stacked already."""
        self._put(self._found(items, lambda tensor: tensor))

    def columns(self) -> dict[Key, Any]:
        """All that was read: a column is a tensor, or a tuple or a dict of them."""
        if self.filled < self._count:
            raise ValueError(
                f"only {self.filled} of {self._count} samples came: mend the dataset's length"
            )
        found: dict[Key, Any] = {}
        for (key, *inside), column in self._columns.items():
            if inside:
                found.setdefault(key, {})[inside[0]] = column
            else:
                found[key] = column
        return {key: _tuple(value) for key, value in found.items()}

    def _found(self, item: Any, shape: Callable[[Tensor], Tensor]) -> dict[Path, Tensor]:
        parts = dict(_parts(item))
        if not self._keys:
            self._keys = self._choose(list(parts))
        if not all(key in parts for key in self._keys):
            raise ValueError(f"sample {self.filled} lacks {self._missing(parts)}: give all of them")
        leaves = (
            ((key, *path), value)
            for key in self._keys
            for path, value in _leaves(parts[key], _name(key))
        )
        return {
            path: shape(tensor_of(value, f"{_name(*path)} in sample {self.filled}", self._dtype))
            for path, value in leaves
        }

    def _missing(self, parts: Mapping[Key, Any]) -> str:
        return ", ".join(_name(key) for key in self._keys if key not in parts)

    def _put(self, found: dict[Path, Tensor]) -> None:
        if not self._columns:
            self._allocate(found)
        if found.keys() != self._columns.keys():
            raise ValueError(f"sample {self.filled} has other parts than sample 0: give the same")
        rows = 1
        for path, column in self._columns.items():
            tensor = found[path]
            rows = len(tensor) if tensor.ndim else 0
            self._check(path, tensor, column)
            column[self.filled : self.filled + rows] = tensor
        self.filled += rows

    def _allocate(self, found: dict[Path, Tensor]) -> None:
        for path, tensor in found.items():
            if not tensor.ndim:
                raise ValueError(f"{_name(*path)} are one for all samples: give a row per sample")
        check_room(sum(self._count * tensor[:1].nbytes for tensor in found.values()), "the samples")
        self._columns = {
            path: torch.empty((self._count, *tensor.shape[1:]), dtype=tensor.dtype)
            for path, tensor in found.items()
        }

    def _check(self, path: Path, tensor: Tensor, column: Tensor) -> None:
        where = f"{_name(*path)} in sample {self.filled}"
        if tensor.shape[1:] != column.shape[1:]:
            raise ValueError(
                f"{where} are {list(tensor.shape[1:])}, those in sample 0 "
                f"{list(column.shape[1:])}: pad or crop them to one shape"
            )
        if tensor.dtype != column.dtype:
            raise ValueError(
                f"{where} are {tensor.dtype}, those in sample 0 {column.dtype}: give one type"
            )
        if not tensor.ndim or self.filled + len(tensor) > self._count:
            raise ValueError(f"more than {self._count} samples came: give one row per sample")


def shown(items: Iterable[Item], rows: Rows, total: int) -> Iterator[Item]:
    """The same items, with a bar on stderr if that takes long."""
    from rich.console import Console

    began, bar = monotonic(), None
    console = Console(stderr=True)
    try:
        for item in items:
            yield item
            if bar is None and rows.filled and monotonic() - began > _PATIENCE:
                bar = _bar(console)
                task = bar.add_task(str(rows), total=total)
                if not console.is_terminal:
                    console.print(str(rows))
            if bar:
                bar.update(task, completed=rows.filled)
    finally:
        if bar:
            bar.stop()


def _bar(console: "Console") -> "Progress":
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    looks = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bar = Progress(*looks, TimeRemainingColumn(), console=console, transient=True)
    if console.is_terminal:
        bar.start()
    return bar


def _parts(item: Any) -> Iterable[tuple[Key, Any]]:
    """An item's parts, by name or place."""
    if isinstance(item, Mapping):
        return ((str(key), value) for key, value in item.items())
    if isinstance(item, tuple | list):
        return enumerate(item)
    raise ValueError(
        f"an item of the dataset is {type(item).__name__}: it must be a tuple of input and target, "
        f"or a dict"
    )


def _leaves(part: Any, name: str) -> Iterator[tuple[Path, Any]]:
    """The tensors of a part: itself, or several in a tuple or a dict."""
    several = isinstance(part, Mapping | tuple)
    if isinstance(part, list) and any(isinstance(value, Tensor | np.ndarray) for value in part):
        several = True
    if not several:
        yield (), part
        return
    for key, value in _parts(part):
        if isinstance(value, Mapping | tuple):
            raise ValueError(
                f"{name} lie in tuples within tuples: give one tuple or one dict of tensors"
            )
        yield (key,), value


def _tuple(value: Any) -> Any:
    """Tensors by place as a tuple."""
    by_place = isinstance(value, dict) and all(isinstance(key, int) for key in value)
    return tuple(value.values()) if by_place else value


def _name(*path: Key) -> str:
    """What a part is called in a sentence."""
    key = path[-1]
    return f"the values of {key!r}" if isinstance(key, str) else f"the values of part {key}"
