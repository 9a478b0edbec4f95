"""Where the classes are in outputs, and which targets count."""

from typing import Any

import torch
from torch import Tensor

from partavg.scores.score import Unmeasurable, described

IGNORED = -100
"""The target that does not count, as in torch.nn.functional.cross_entropy."""


def tensor_of(outputs: Any) -> Tensor:
    """The outputs, or what they call logits."""
    if isinstance(outputs, Tensor):
        return outputs
    named = outputs.get("logits") if isinstance(outputs, dict) else None
    logits = getattr(outputs, "logits", named)
    if not isinstance(logits, Tensor):
        raise Unmeasurable(
            f"outputs are a {type(outputs).__name__} without logits: write a function of them"
        )
    return logits


def classified(outputs: Any, targets: Tensor, axis: int | None) -> tuple[Tensor, Tensor]:
    """Outputs with their class axis last, and targets of the shape without it.

    Without an `axis` it is 1 or the last one, whichever the shape of the targets says.
    """
    logits = tensor_of(outputs)
    if targets.is_floating_point() or targets.is_complex():
        raise Unmeasurable(f"targets are {_kind(targets)}, and no classes")
    last = logits.ndim - 1
    if axis is None:
        fits = [a for a in {1, last} if 0 < a <= last and _without(logits, a) == targets.shape]
        if len(fits) > 1:
            raise Unmeasurable(
                f"in {described(logits, targets)} axis 1 and axis {last} may both be the classes: "
                f"give axis"
            )
        place = fits[0] if fits else -1
    else:
        place = axis + logits.ndim if axis < 0 else axis
    if not 0 < place <= last or _without(logits, place) != targets.shape:
        along = "" if axis is None else f" along axis {axis}"
        raise Unmeasurable(f"{described(logits, targets)} do not fit as classes{along}")
    if logits.shape[place] < 2:
        raise Unmeasurable(f"{described(logits, targets)} have one class only")
    return logits.movedim(place, -1), targets.long()


def counted(targets: Tensor, classes: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Which targets count, and how many: NaN if one of them is no class.

    No branch depends on a value: nobody waits for a GPU.
    """
    valid = targets != ignore_index
    known = targets.clamp(0, classes - 1) == targets
    return valid, torch.where((known >= valid).all(), valid.sum().double(), torch.nan)


def alike(outputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and targets of one shape; outputs [n, 1] go with targets [n], and [n] with [n, 1]."""
    values = tensor_of(outputs)
    if values.shape != targets.shape:
        if _bare(values) != _bare(targets):
            raise Unmeasurable(f"{described(values, targets)} have different shapes")
        targets = targets.reshape(values.shape)
    if values.is_complex() or targets.is_complex():
        raise Unmeasurable("outputs or targets are complex numbers")
    return values, targets


def _bare(tensor: Tensor) -> tuple[int, ...]:
    """A shape without a last axis of one."""
    return tuple(tensor.shape[:-1] if tensor.ndim > 1 and tensor.shape[-1] == 1 else tensor.shape)


def _without(tensor: Tensor, axis: int) -> torch.Size:
    return tensor.shape[:axis] + tensor.shape[axis + 1 :]


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
