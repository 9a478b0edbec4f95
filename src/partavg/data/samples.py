"""Inputs and targets of samples, and whether they fit each other."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.inputs import Inputs, count, each, tensors

_LOOKED_AT = 1 << 28  # numbers of an input that are searched for NaN
_PIECE = 1 << 22


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
        """How much memory they take."""
        return sum(tensor.nbytes for tensor in self.tensors)

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

    def each(self, function: Callable[[Tensor], Tensor]) -> "Samples":
        """The same samples with a function applied to every tensor."""
        return Samples(each(function, self.inputs), each(function, self.targets))

    def some(self, rows: slice | Int[Tensor, "..."]) -> "Samples":
        """The samples at some places: views of them for a slice, copies for indices."""
        return self.each(lambda tensor: tensor[rows])

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
