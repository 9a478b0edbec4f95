"""What a simulation is, as settings: for run folders, and to know whether a state is its own."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from partavg.core.abilities import described
from partavg.core.solver import Solver
from partavg.solvers import SOLVERS

Sections = dict[str, dict[str, Any]]
"""Settings as a recipe has them: numbers, strings, booleans, lists and tables of them."""

_HASHED = 1 << 24  # bytes of a large tensor that are looked at, spread over all of it
_FREE = ("engine.", "training.lr", "loss.")
"""What may change when a state is loaded: it decides how steps are taken, not what was done."""


def plain(value: Any) -> Any:
    """A value as a recipe can hold it; objects are named, dataclasses with their fields.

    >>> from partavg import SGD
    >>> plain(SGD(0.9))["momentum"], plain(len), plain((1, 2.5))
    (0.9, 'len', [1, 2.5])
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return fingerprint([value])
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return {"name": _name(value), **{key: one for key, one in own.items() if one is not None}}
    return described(value)


def _name(thing: object) -> str:
    """What a recipe would call a solver; anything else by its class."""
    if isinstance(thing, Solver):
        for name, known in SOLVERS.items():
            if known is type(thing):
                return name
    return type(thing).__name__


def component(thing: object) -> dict[str, Any]:
    """The section of something that has a name and options."""
    said = plain(thing)
    return said if isinstance(said, dict) else {"name": said}


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """A digest of tensors: of large ones, of rows at equal distances."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        rows = max(1, len(tensor)) if tensor.ndim else 1
        most = max(1, _HASHED * rows // max(1, tensor.nbytes))
        some = tensor[torch.arange(most) * rows // most] if most < rows else tensor
        whole = some.detach().cpu().contiguous()
        digest.update(whole.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def flat(sections: Sections) -> dict[str, Any]:
    """All keys, `section.key`."""
    return {f"{name}.{key}": v for name, values in sections.items() for key, v in values.items()}


def check_same_simulation(own: Sections, saved: Sections) -> None:
    """Raise a ValueError if a state was saved by a simulation that went another way."""
    ours, theirs = flat(own), flat(saved)
    for key in {**theirs, **ours}:
        if ours.get(key) != theirs.get(key) and not key.startswith(_FREE):
            raise ValueError(
                f"the state was saved with {key} = {theirs.get(key)!r}, and this simulation has "
                f"{ours.get(key)!r}: make the simulation as it was"
            )
