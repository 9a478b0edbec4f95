"""A score: sums and counts of batches, which any batching and any ranks add up to one number."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

Sums = Callable[..., Any]
"""(outputs, targets) of a batch -> (sum, count): two numbers, or two tensors of one shape."""

Finish = Callable[[Tensor, Tensor], Tensor | float]
"""(sum, count) of all batches, in float64 -> the number."""

Pair = tuple[Tensor | float, Tensor | float]

ANY, POSITIVE, SHARE = (-inf, inf), (0.0, inf), (0.0, 1.0)
"""What a sum by its count can be: any number, none below 0, a share."""


class Unmeasurable(ValueError):
    """Outputs and targets are not such that a score means something."""


class MetricFailed(RuntimeError):
    """A metric from outside raised an error, or is no number; what is on disk can be resumed."""


def ratio(total: Tensor, count: Tensor) -> Tensor:
    """The sum by the count; of several the mean of those that were counted at all."""
    counted = count != 0
    return (total[counted] / count[counted]).mean()


@dataclass(frozen=True, slots=True)
class Score:
    """What is measured of outputs and targets, and what it is called."""

    key: str
    sums: Sums
    finish: Finish = ratio
    required: bool = True
    """Whether it is an error if it cannot be measured; otherwise it is left out."""
    within: tuple[float, float] = ANY
    """What the sum by the count can be: others' numbers beyond that are not believed."""

    def of(self, outputs: Any, targets: Tensor) -> Pair | None:
        """The sum and the count of a batch; None where it cannot be measured."""
        try:
            found = self.sums(outputs, targets)
            if found is None:
                raise Unmeasurable(f"it gave None for {described(outputs, targets)}")
            return _pair(found)
        except Unmeasurable as reason:
            if self.required:
                raise Unmeasurable(f"metric {self.key!r} cannot be measured: {reason}") from None
            return None
        except Exception as error:
            raise MetricFailed(
                f"metric {self.key!r} failed with {type(error).__name__}: {error}; mend it, or "
                f"leave it out"
            ) from error

    def value(self, total: Tensor, count: Tensor) -> float | None:
        """The number; None where nothing was counted, or something that cannot be."""
        if count.numel() and float(count.min()) < 0:
            raise MetricFailed(
                f"metric {self.key!r} failed: it counted {float(count.min()):g}; return how many "
                f"there are, from 0 on"
            )
        if not bool(count.isnan().any()):
            return float(self.finish(total, count)) if bool(count.any()) else None
        if self.required:
            raise Unmeasurable(
                f"metric {self.key!r} cannot be measured: some targets are not what it counts"
            )
        return None


def add(one: Pair | None, other: Pair | None) -> Pair | None:
    """Two sums and counts together; what cannot be measured in a part cannot be in all."""
    return (one[0] + other[0], one[1] + other[1]) if one and other else None


def on_host(pair: Pair | None) -> tuple[Tensor, Tensor] | None:
    """A sum and a count where others can have them."""
    if pair is None:
        return None
    total, count = (torch.as_tensor(value, dtype=torch.float64).cpu() for value in pair)
    return total, count


def described(outputs: Any, targets: Tensor) -> str:
    """The shapes of outputs and targets, in words."""
    shape = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    return f"outputs {shape} and targets {list(targets.shape)}"


def _pair(found: Any) -> Pair:
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise ValueError(f"it gave {found!r}: return a sum and a count")
    total, count = map(_number, found)
    shapes = [list(value.shape) if isinstance(value, Tensor) else [] for value in (total, count)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"it gave a sum {shapes[0]} and a count {shapes[1]}: return two numbers, or two "
            f"tensors of one shape"
        )
    if not isinstance(count, Tensor) and count < 0:  # a tensor on a GPU is not waited for
        raise ValueError(f"it gave a count of {count:g}: return how many there are, from 0 on")
    return total, count


def _number(value: Any) -> Tensor | float:
    if isinstance(value, int | float):
        return float(value)
    tensor = torch.as_tensor(value).detach()
    if tensor.is_complex():
        raise ValueError(f"it gave {value!r}: return real numbers")
    return tensor.double()
