"""Named tensors as the columns of one flat vector."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

import torch
from jaxtyping import Shaped
from torch import Tensor

from partavg.core.arguments import check_kind, check_whole
from partavg.sentences import shown


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in the columns of a flat vector.

    >>> layout = Layout.of({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    >>> layout.size, layout.starts
    (8, (0, 6))
    >>> layout.views(torch.arange(8.0))["bias"]
    tensor([6., 7.])
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        names, shapes = self.names, self.shapes
        known = [isinstance(given, tuple | list) for given in (names, shapes)]
        if not all(known) or not all(isinstance(name, str) for name in names):
            raise ValueError("a layout is of names and shapes: give a tuple of each")
        if len(names) != len(shapes) or len(set(names)) < len(names):
            raise ValueError(
                f"{len(names)} names, {len(set(names))} of them different, and {len(shapes)} "
                f"shapes: give each tensor a name and a shape"
            )
        for name, shape in zip(names, shapes, strict=True):
            if not isinstance(shape, tuple | list):
                raise ValueError(f"shape {shown(shape)} of {name!r}: give a tuple of numbers")
            for size in shape:
                check_whole(f"size of {name!r}", size, 0)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Layout":
        """Lay the tensors out one after another, in the order given."""
        if not isinstance(tensors, Mapping):
            raise ValueError(f"tensors {shown(tensors)}: give a dict of names and tensors")
        for name, tensor in tensors.items():
            check_kind(f"entry {name!r}", tensor, Tensor, "a tensor")
        return cls(tuple(tensors), tuple(tuple(t.shape) for t in tensors.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of columns of each tensor."""
        return tuple(prod(shape) for shape in self.shapes)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First column of each tensor."""
        return tuple(accumulate(self.sizes, initial=0))[:-1]

    @cached_property
    def size(self) -> int:
        """Number of columns of all tensors together."""
        return sum(self.sizes)

    def between(self, start: int, stop: int) -> "Layout":
        """The layout of some columns, which begin and end where tensors do."""
        if (start, stop) == (0, self.size):
            return self
        chosen = [
            tensor
            for tensor, (first, size) in enumerate(zip(self.starts, self.sizes, strict=True))
            if start <= first and first + size <= stop
        ]
        return Layout(
            tuple(self.names[tensor] for tensor in chosen),
            tuple(self.shapes[tensor] for tensor in chosen),
        )

    def flatten(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Shaped[Tensor, "d"]:
        """Copy the tensors into one new flat vector."""
        flat = torch.empty(self.size, dtype=dtype)
        for name, view in self.views(flat).items():
            view.copy_(tensors[name])
        return flat

    def views(self, flat: Shaped[Tensor, "*rows d"]) -> dict[str, Tensor]:
        """See the columns as named tensors; leading axes stay, memory is shared."""
        # One split instead of many slices: the backward pass of 60 slices costs 36 times as much.
        try:
            pieces = torch.split(flat, list(self.sizes), -1)
        except (RuntimeError, AttributeError, TypeError, IndexError):
            given = list(flat.shape) if isinstance(flat, Tensor) else shown(flat)
            raise ValueError(
                f"{given} cannot be seen as {len(self.names)} tensors: give one of {self.size} "
                f"columns"
            ) from None
        return {
            name: piece.view((*flat.shape[:-1], *shape))
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }


def channels_of(shape: Sequence[int]) -> int:
    """How many channels a tensor of a shape has, along its first axis."""
    return shape[0] if shape else 1
