"""What a split is: the samples of each worker, and whether that makes sense."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from partavg.core.arguments import check_whole
from partavg.data.samples import Samples
from partavg.sentences import shown

Split = list[Int[Tensor, "_"]]
"""The indices of each worker's samples."""


def checked_split(
    given: Any,
    count: int,
    workers: int | None = None,
    called: str = "",
    *,
    may_be_empty: bool = False,
) -> Split:
    """A split of so many samples, over so many workers if that is known; or a ValueError.

    A worker's samples are a list, an array or a tensor: of indices, or a mask that says of every
    sample whether it is the worker's. Workers may share samples; those to test on may be none.

    >>> checked_split([[0, 2], [True, False, True]], count=3)
    [tensor([0, 2]), tensor([0, 2])]
    """
    prefix = called or "the split"
    if isinstance(given, str | bytes | Mapping) or _length(given) is None:
        raise ValueError(
            f"{prefix} is {shown(given)}: give a list with the indices of each worker's samples"
        )
    if workers is not None and len(given) != workers:
        raise ValueError(
            f"{prefix} is for {len(given)} workers, not {workers}: give as many lists of indices"
        )
    if not len(given):
        raise ValueError(f"{prefix} has no workers: give the indices of each worker's samples")
    if (many := _many_at_once(given, count)) is not None:
        return many
    start = f"{called}: worker" if called else "worker"
    found = []
    for worker, owned in enumerate(given):
        own = _indices(owned, count, f"{start} {worker}")
        if not len(own) and not may_be_empty:
            raise ValueError(f"{start} {worker} owns no samples: give every worker at least one")
        found.append(own)
    return found


def check_workers(samples: int, workers: Any, minimum: Any = 1) -> None:
    """Raise a ValueError if so many workers cannot own a minimum of samples each."""
    check_whole("workers", workers)
    check_whole("minimum", minimum, 0)
    if workers < 1:
        raise ValueError(f"{workers} workers cannot train: use 1 or more")
    if workers * max(minimum, 1) <= samples:
        return
    most = samples // max(minimum, 1)
    if minimum > 1:
        raise ValueError(
            f"{workers} workers cannot own {minimum} of {samples} samples each: use at most {most} "
            f"workers, or a lower minimum"
        )
    raise ValueError(
        f"{workers} workers cannot share {samples} samples: use at most {most} workers"
    )


def _many_at_once(given: Any, count: int) -> Split | None:
    """A copy of a split that is known to be right at a glance; None if it needs a closer look."""
    if not isinstance(given, list | tuple):
        return None
    plain = (
        isinstance(own, Tensor) and own.dtype == torch.int64 and own.ndim == 1 and own.is_cpu
        for own in given
    )
    if not all(plain) or not all(sizes := [len(own) for own in given]):
        return None
    samples = torch.cat(given)
    owners = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    pairs, _ = (owners * count + samples).sort()
    if samples.min() < 0 or samples.max() >= count or bool((pairs[1:] == pairs[:-1]).any()):
        return None
    return list(torch.split(samples, sizes))


def _indices(given: Any, count: int, who: str) -> Int[Tensor, "_"]:
    found = _array(given, who)
    if found.ndim != 1:
        raise ValueError(
            f"{who} owns indices of shape {list(found.shape)}: give a flat list, for example by "
            f"flatten()"
        )
    if not len(found):
        return torch.empty(0, dtype=torch.int64)
    if found.dtype.kind == "b":
        return _marked(found, count, who)
    if found.dtype.kind not in "iu":
        raise ValueError(f"{who} owns indices of {found.dtype}: give whole numbers")
    least, most = int(found.min()), int(found.max())
    if least < 0 or most >= count:
        wrong = least if least < 0 else most
        raise ValueError(f"{who} owns sample {wrong}, and there are 0 to {count - 1}: mend it")
    found = found.astype(np.int64)
    again = len(found) - len(np.unique(found))
    if again and len(found) == count and most <= 1 < count - 1:
        raise ValueError(
            f"{who} owns samples 0 and 1 only, {count} times: give a mask as booleans, for example "
            f"by bool()"
        )
    if again:
        warnings.warn(
            f"{who} owns {again} samples more than once: these are drawn more often", stacklevel=4
        )
    return torch.from_numpy(found)


def _length(given: Any) -> int | None:
    """How many there are; None of what has no length, as a tensor of one number."""
    try:
        return len(given)
    except TypeError:
        return None


def _array(given: Any, who: str) -> NDArray[Any]:
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = given.float() if given.dtype == torch.bfloat16 else given
    if isinstance(given, str | bytes | Mapping | set) or not hasattr(given, "__len__"):
        raise ValueError(f"{who} owns {shown(given)}: give a list of indices")
    try:
        return np.asarray(given if hasattr(given, "__array__") else list(given))
    except Exception:
        raise ValueError(f"{who} owns a list that is uneven: give a flat list of indices") from None


def _marked(mask: NDArray[np.bool_], count: int, who: str) -> Int[Tensor, "_"]:
    if len(mask) != count:
        raise ValueError(
            f"{who} has a mask of {len(mask)} samples, and there are {count}: give a mask of all, "
            f"or indices"
        )
    return torch.from_numpy(np.flatnonzero(mask))


def class_counts(samples: Samples, split: Split, classes: int | None = None) -> list[list[int]]:
    """How many samples of each class each worker owns; none where there are no classes.

    There are so many `classes`, or as many as are seen.
    """
    labels = samples.labels
    if labels is None or int(labels.min()) < 0:
        return []
    known, most = labels.cpu(), classes or int(labels.max()) + 1
    return [known[own].bincount(minlength=most).tolist() for own in split]
