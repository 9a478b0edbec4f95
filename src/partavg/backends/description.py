"""What a simulation is, as settings: for run folders, and to know whether a state is its own."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from partavg.core.abilities import described
from partavg.core.participation import Participation
from partavg.core.partition import Partition
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.data.fingerprint import fingerprint
from partavg.data.samples import Samples
from partavg.engines.choice import Choice
from partavg.engines.model import RowModel
from partavg.own_code import without_folder
from partavg.solvers import SOLVERS

Sections = dict[str, dict[str, Any]]
"""Settings as a recipe has them: numbers, strings, booleans, lists and tables of them."""

_STATE = {"params", "buffers", "memory", "steps", "lr_sum", "taken", "step", "bank", "pending"}
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
    if isinstance(value, Partition):  # which may have very many spans
        return f"sha256 {hashlib.sha256(repr(value).encode()).hexdigest()}"
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


def given_settings(
    *,
    split: Sequence[Tensor],
    batch: int,
    lr: object,
    seed: int,
    loss: object,
    solver: Solver,
    schedule: Schedule,
    averaging: Mapping[str, object],
    participation: Participation | None,
    pace: object,
    adapt: object,
    attack: object = None,
    privacy: object = None,
) -> Sections:
    """What a simulation was given, as a recipe would have it."""
    who = participation
    return {
        "training": {"workers": len(split), "batch": batch, "lr": plain(lr), "seed": seed},
        "loss": {"name": described(loss)},
        "solver": component(solver),
        "averaging": {
            "interval": schedule.interval,
            "parts": schedule.parts,
            "shuffle": schedule.shuffle is not None,
            **{key: plain(without_folder(value)) for key, value in averaging.items()},
        },
        "participation": {
            "fraction": who.active / who.clients if who else 1.0,
            **(plain(_told(who)) if who else {}),
        },
        "pace": component(pace) if pace else {"name": "even"},
        "adapt": component(adapt) if adapt else {"name": "fixed"},
        **({"attack": component(attack)} if attack else {}),
        "split": {"name": "given", "sha256": fingerprint(split)},
        **({"privacy": _given(privacy)} if privacy else {}),
    }


def _given(privacy: object) -> dict[str, Any]:
    """The settings of a private run that were given, or that it takes by itself."""
    own: dict[str, Any] = plain(privacy)
    return {name: value for name, value in own.items() if name != "name"}


def _told(who: Participation) -> dict[str, Any]:
    """What decides who is active; the interval is said elsewhere."""
    told = asdict(who)
    del told["interval"]
    return told if who.rolling else {k: v for k, v in told.items() if k != "rolling"}  # as in 0.1


def made_settings(
    model: RowModel, samples: Samples, engine: Choice, device: torch.device
) -> Sections:
    """What it was made of: models and data by a digest of their numbers."""
    start = *model.start(), model.whole_numbers()
    return {
        "model": {
            "name": type(model.skeleton).__name__,
            "parameters": model.params.size,
            "dtype": str(model.dtype).removeprefix("torch."),
            "sha256": fingerprint(start),
        },
        "data": {
            "name": "given",
            "samples": samples.size,
            "sha256": fingerprint(samples.tensors),
        },
        "engine": {
            "name": engine.name,
            "chunk": engine.chunk,
            "precision": engine.precision,
            "device": str(device),
        },
    }


def flat(sections: Sections) -> dict[str, Any]:
    """All keys, `section.key`."""
    return {f"{name}.{key}": v for name, values in sections.items() for key, v in values.items()}


def check_state(saved: Any, own: Callable[[], Sections], shapes: Mapping[str, list[int]]) -> None:
    """Raise a ValueError for what is no state, or that of a simulation which went another way.

    `own` are the settings, `shapes` those of tensors of the simulation that it is loaded into.
    """
    if not isinstance(saved, Mapping) or not saved.keys() >= _STATE:
        raise ValueError("what is loaded is no state of a simulation: give what state() gave")
    if "settings" in saved:  # 0.1 did not save them
        settings = saved["settings"]
        if not _is_table(settings) or not all(map(_is_table, settings.values())):
            raise _damaged("settings")
        _check_same(flat(own()), flat(settings))
    for name in ("step", "bytes", "messages"):
        count = saved.get(name, 0)
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise _damaged(name)
    for name in ("memory", "bank", "pending", "notes"):
        if not _is_table(saved.get(name, {})):
            raise _damaged(name)
    for name, shape in shapes.items():
        found = _found(saved, name)
        if name.startswith("bank.") and not isinstance(found, Tensor):
            _check_bank(name, found, shape)
        else:
            _check_shape(name, found, shape)
    for name in ("steps", "lr_sum"):
        shape = [shapes["params"][0], *getattr(saved["steps"], "shape", (0, 0))[1:2]]
        _check_shape(name, saved[name], shape)
    for name, width in (("local_taken", shapes["taken"]), ("common", shapes["params"][1:])):
        if saved.get(name) is not None:
            _check_shape(name, saved[name], width)


def _found(saved: Mapping[str, Any], name: str) -> Any:
    section, _, key = name.partition(".")
    return saved[section].get(key) if key else saved[section]


def _check_shape(name: str, value: Any, shape: list[int]) -> None:
    if not isinstance(value, Tensor):
        raise _damaged(name)
    if list(value.shape) != shape:
        raise ValueError(
            f"the state has {name} {list(value.shape)}, and this simulation {shape}: load it into "
            f"a simulation of the same model and workers"
        )


def _check_bank(name: str, found: Any, shape: list[int]) -> None:
    """A bank of so many clients, each with a row of such a width."""
    if not _is_table(found) or not isinstance(found.get("clients"), Tensor):
        raise _damaged(name)
    clients = found["clients"]
    _check_shape(name, found.get("first"), [1, *shape[1:]])
    _check_shape(name, found.get("rows"), [len(clients), *shape[1:]])
    known = clients.dtype == torch.int64 and clients.ndim == 1
    if not known or bool((clients < 0).any() or (clients >= shape[0]).any()):
        raise _damaged(name)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _damaged(name: str) -> ValueError:
    return ValueError(f"the state is damaged in {name}: give what state() gave, as it was")


def _check_same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    for key in {**theirs, **ours}:
        if ours.get(key) != theirs.get(key) and not key.startswith(_FREE):
            if key.endswith(".sha256"):
                what = "other samples" if key.startswith("data") else "another split of samples"
                raise ValueError(
                    f"the state was saved with {what} than this simulation has ({key}): give the "
                    f"data as they were, or begin anew"
                )
            raise ValueError(
                f"the state was saved with {key} = {theirs.get(key)!r}, and this simulation has "
                f"{ours.get(key)!r}: make the simulation as it was"
            )
