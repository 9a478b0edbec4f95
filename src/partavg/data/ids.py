"""A number per sample: its label or its client, from whatever holds one."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

_KINDS = {"b": "true or false", "f": "floating point", "c": "complex", "O": "objects"}


def class_labels(given: Any) -> NDArray[np.int64]:
    """The class of each sample: a tensor, an array or a list of integers.

    >>> class_labels([0, 2, 1])
    array([0, 2, 1])
    """
    found = _flat(given, "labels")
    if found.dtype.kind not in "iu":
        what = _KINDS.get(found.dtype.kind, "text")
        raise ValueError(
            f"the labels are {what} ({found.dtype}): give the number of each sample's class, as "
            f"integers"
        )
    return found.astype(np.int64)


def client_ids(given: Any) -> NDArray[Any]:
    """The client of each sample: a number or a name.

    >>> client_ids(["ann", "bob", "ann"]).tolist()
    ['ann', 'bob', 'ann']
    """
    found = _flat(given, "client ids")
    if found.dtype.kind == "O" and all(isinstance(name, str) for name in found):
        found = found.astype(str)  # as pandas keeps text
    if found.dtype.kind not in "iubUS":
        what = _KINDS.get(found.dtype.kind, "no names")
        raise ValueError(
            f"the client ids are {what} ({found.dtype}): give an integer or a name per sample"
        )
    return found


def numbered(given: Any) -> Int[Tensor, "n"]:
    """Clients as integers: as they are, names in alphabetical order."""
    ids = client_ids(given)
    if ids.dtype.kind not in "iu":
        ids = np.unique(ids, return_inverse=True)[1]
    return torch.from_numpy(ids.astype(np.int64))


def numbered_alike(one: Any, other: Any) -> tuple[Int[Tensor, "n"] | None, Int[Tensor, "_"] | None]:
    """The clients of two sets of samples as integers, the same client by the same one."""
    if one is None or other is None:
        return None if one is None else numbered(one), None if other is None else numbered(other)
    first, second = client_ids(one), client_ids(other)
    if {first.dtype.kind, second.dtype.kind} <= {"i", "u"}:
        return numbered(first), numbered(second)
    both = numbered(np.concatenate([first.astype(str), second.astype(str)]))
    return both[: len(first)], both[len(first) :]


def how_many(given: Any) -> int:
    """The number of samples that some labels, or any targets, are of."""
    try:
        if isinstance(given, str | bytes | dict):
            raise TypeError
        return len(given)
    except TypeError:
        raise ValueError(
            f"the labels are {type(given).__name__}: give one for each sample"
        ) from None


def _flat(given: Any, what: str) -> NDArray[Any]:
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = given.float() if given.dtype == torch.bfloat16 else given
    try:
        found = np.asarray(given)
    except Exception as error:
        raise ValueError(f"the {what} cannot be read: {error}; give one for each sample") from None
    if found.ndim != 1:
        raise ValueError(
            f"the {what} are of shape {list(found.shape)}: give one for each sample, as a flat list"
        )
    if not len(found):
        raise ValueError(f"there are no {what}: give one for each sample")
    return found
