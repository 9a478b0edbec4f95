"""Inputs and targets of samples, and whether they fit each other."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.inputs import Inputs, count, each, tensors

_LOOKED_AT = 1 << 28  # numbers of an input that are searched for NaN
_PIECE = 1 << 22
_SEEN = 4  # samples that tell what they are
_NARROW = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32)
_WHOLE = (*_NARROW, torch.int64)


class Samples(NamedTuple):
    """Inputs and targets, a row of each tensor per sample.

    Both are a tensor, several in a tuple, or several by name in a dict. See `as_samples`.
    """

    inputs: Any
    """`Inputs`, see partavg.core.inputs."""
    targets: Any
    """Likewise."""

    @property
    def size(self) -> int:
        """How many samples there are."""
        return count(self.targets)

    @property
    def bytes(self) -> int:
        """How much memory they take; what several views share counts once."""
        return room_of(self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, of inputs and of targets."""
        return *tensors(self.inputs), *tensors(self.targets)

    @property
    def of_tensors(self) -> bool:
        """Whether there are tensors on both sides, and nothing else."""
        return all(map(_is_tensors, self))

    @property
    def labels(self) -> Int[Tensor, "n"] | None:
        """The class of each sample; None where the targets are anything else."""
        found = self.targets
        if not isinstance(found, Tensor) or found.ndim != 1:
            return None
        return None if found.is_floating_point() or found.dtype == torch.bool else found

    @property
    def classes(self) -> Int[Tensor, "n"]:
        """The class of each sample; one for all where there are none."""
        return torch.zeros(self.size).long() if self.labels is None else self.labels

    @property
    def tokens(self) -> int | None:
        """How many tokens a text has whose targets are the tokens after them; None of others.

        A few samples are looked at; negative targets may stand for tokens to ignore.
        """
        inputs, targets = self
        texts = isinstance(inputs, Tensor) and isinstance(targets, Tensor) and inputs.ndim == 2
        if not texts or inputs.shape != targets.shape or inputs.dtype not in _WHOLE:
            return None
        if targets.dtype not in _WHOLE or targets.shape[1] < 2:
            return None
        here, after = (signed(side)[:_SEEN].long() for side in (inputs, targets))
        ignored = (after < 0) & (targets.dtype != torch.uint16)
        follow = (here[:, 1:] == after[:, :-1]) | ignored[:, :-1]
        return int(targets.shape[1]) if bool(follow.all()) else None

    def each(self, function: Callable[[Tensor], Tensor]) -> "Samples":
        """The same samples with a function applied to every tensor."""
        return Samples(each(function, self.inputs), each(function, self.targets))

    def some(self, rows: slice | Int[Tensor, "..."]) -> "Samples":
        """The samples at some places: views of them for a slice, copies for indices."""
        return self.each(lambda tensor: _some(signed(tensor), rows).view(tensor.dtype))

    def check(self) -> None:
        """Raise a ValueError if these are no tensors with as many rows of each."""
        if not self.of_tensors:
            raise ValueError("these are no tensors: make samples of them by partavg.as_samples")
        for what, side in zip(("inputs", "targets"), self, strict=True):
            for tensor in tensors(side):
                if tensor.layout is not torch.strided:
                    raise ValueError(
                        f"the {what} are {tensor.layout}: give a tensor with a row per sample, "
                        f"for example by to_dense()"
                    )
                if not tensor.ndim:
                    raise ValueError(f"the {what} are a single number: give a row per sample")
        lengths = {len(tensor) for tensor in self.tensors}
        if len(lengths) > 1:
            rows = " and ".join(
                f"{what} {shapes(side)}"
                for what, side in zip(("inputs", "targets"), self, strict=True)
            )
            raise ValueError(f"{rows} differ in length: give a row of each per sample")
        if lengths == {0}:
            raise ValueError("there are no samples: give at least one")

    def check_numbers(self) -> None:
        """Raise a ValueError if an input is NaN; of many gigabytes, some rows are looked at."""
        for tensor in tensors(self.inputs):
            if not tensor.is_floating_point():
                continue
            looked_at = tensor[:: max(1, -(-tensor.numel() // _LOOKED_AT))]
            for piece in torch.split(looked_at, max(1, _PIECE // max(1, tensor[:1].numel()))):
                if piece.isnan().any():
                    raise ValueError("some inputs are NaN: fill them in, or leave samples out")


def _some(tensor: Tensor, rows: slice | Int[Tensor, "..."]) -> Tensor:
    """The same of one tensor; where rows are narrow, indexing takes five times as long."""
    if isinstance(rows, slice) or not tensor.is_cpu or rows.dtype == torch.bool:
        return tensor[rows]
    return tensor.index_select(0, rows.flatten()).view(*rows.shape, *tensor.shape[1:])


def signed(tensor: Tensor) -> Tensor:
    """The same bits in a type that torch can index everywhere."""
    return tensor.view(torch.int16) if tensor.dtype == torch.uint16 else tensor


def widened(side: Inputs) -> Inputs:
    """Whole numbers as int64, which losses and embeddings want, however they are stored."""
    return each(lambda tensor: tensor.long() if tensor.dtype in _NARROW else tensor, side)


Seen = Callable[[Any, Tensor | None], Any]
"""(stored inputs, keys for what is drawn) -> what the model sees."""


def as_seen(samples: Samples, transform: Seen | None = None) -> Seen:
    """What a model sees of samples: tokens as int64, all else as it is kept; then transformed."""
    transform = transform or _as_they_are
    if samples.tokens is None:
        return transform
    return lambda inputs, keys: transform(widened(inputs), keys)


def _as_they_are(inputs: Inputs, keys: Tensor | None) -> Inputs:
    return inputs


def shared(views: Iterable[Tensor]) -> dict[tuple[int, torch.dtype], Tensor]:
    """The memory, flat, of views that overlap each other, as the windows of a text do.

    By `memory_of` each of them; those that have their memory to themselves are left out.
    """
    groups: dict[tuple[int, torch.dtype], list[Tensor]] = {}
    for view in views:
        groups.setdefault(memory_of(view), []).append(view)
    found = {}
    for memory, group in groups.items():
        first, last = (f(end for view in group for end in _ends(view)) for f in (min, max))
        if last - first < sum(view.numel() for view in group):
            found[memory] = group[0].as_strided((last - first,), (1,), first)
    return found


def room_of(views: Iterable[Tensor]) -> int:
    """How many bytes some tensors take; what several of them share counts once."""
    each_one = list(views)
    pieces = shared(each_one)
    alone = (view.nbytes for view in each_one if memory_of(view) not in pieces)
    return sum(alone) + sum(piece.nbytes for piece in pieces.values())


def memory_of(view: Tensor) -> tuple[int, torch.dtype]:
    """What tells the memory of a tensor from that of others."""
    return view.untyped_storage().data_ptr(), view.dtype


def _ends(view: Tensor) -> tuple[int, int]:
    """Where a view begins in its memory, and where it has ended."""
    reach = sum((size - 1) * step for size, step in zip(view.shape, view.stride(), strict=True))
    start = int(view.storage_offset())
    return start, start + (int(reach) + 1 if view.numel() else 0)


def _is_tensors(side: Any) -> bool:
    if isinstance(side, Tensor):
        return True
    if not isinstance(side, tuple | dict) or not side:
        return False
    values = side.values() if isinstance(side, dict) else side
    return all(isinstance(tensor, Tensor) for tensor in values)


def shapes(side: Inputs, first: int = 0) -> str:
    """The shapes of some tensors, or what they are after the first axes, for a sentence."""
    found = [str(list(tensor.shape[first:])) for tensor in tensors(side)]
    return found[0] if len(found) == 1 else f"({', '.join(found)})"
