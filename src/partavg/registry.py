"""Tables of names: what a recipe calls "resnet20" or "scaffold", and what others add to them."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, TypeVar, overload

Thing = TypeVar("Thing")

_HOMES = {
    "adapt": "partavg.core.adapt:ADAPTS",
    "data": "partavg.data:DATASETS",
    "lr_schedule": "partavg.core.rates:RATES",
    "metric": "partavg.metrics.table:METRICS",
    "model": "partavg.models:MODELS",
    "pace": "partavg.core.pace:PACES",
    "partition": "partavg.core.partition:PARTITIONS",
    "sink": "partavg.sinks:SINKS",
    "solver": "partavg.solvers:SOLVERS",
    "split": "partavg.data.split:SPLITS",
}
"""Where the table of each kind is; imported when it is first asked for."""

KINDS = tuple(_HOMES)


class Names(dict[str, Thing]):
    """What the names of one kind stand for.

    >>> Names("fruit", {"apple": 1, "pear": 2}).find("aple")
    Traceback (most recent call last):
    ValueError: fruit 'aple' is not known: did you mean 'apple'?
    """

    def __init__(self, kind: str, known: Mapping[str, Thing]) -> None:
        super().__init__(known)
        self.kind = kind

    def find(self, name: str, key: str = "") -> Thing:
        """What a name stands for; `key` is where it was given, for the error if it is unknown."""
        if key:
            check_name(key, name, self)
        elif name not in self:
            raise ValueError(f"{self.kind} {name!r} is not known: {suggestion(name, self)}")
        return self[name]

    def code(self, thing: Thing) -> object:
        """The class or function that a thing is made of."""
        return thing

    def check(self, name: str, thing: Thing) -> None:
        """Raise a ValueError if a thing from outside cannot have this name."""
        if not callable(thing):
            raise ValueError(f"{thing!r} cannot be a {self.kind}: give a class or a function")


def table(kind: str) -> Names[Any]:
    """The names of a kind."""
    check_name("kind", kind, _HOMES)
    module, _, attribute = _HOMES[kind].partition(":")
    found: Names[Any] = getattr(import_module(module), attribute)
    return found


@overload
def register(kind: str, name: str, thing: Thing) -> Thing: ...
@overload
def register(kind: str, name: str) -> Callable[[Thing], Thing]: ...
def register(kind: str, name: str, thing: Any = None) -> Any:
    """Add a name to the table of its kind, so that recipes and options can use it.

    Kinds are model, data, split, partition, solver, lr_schedule, adapt, pace, metric and sink.
    Options are the fields of a dataclass or the keyword-only arguments of a function. A name can be
    given anew to what was defined again at the same place, as in a notebook.

    >>> from torch import nn
    >>> @register("model", "two_layers")
    ... def two_layers(shape, classes, *, hidden: int = 8):
    ...     return nn.Sequential(nn.Linear(*shape, hidden), nn.Tanh(), nn.Linear(hidden, classes))
    >>> del table("model")["two_layers"]
    """
    if thing is None:
        return lambda given: register(kind, name, given)
    names = table(kind)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise ValueError(
            f"{name!r} cannot name a {kind}: use letters, digits, '_', '-' and '.', a letter first"
        )
    known, given = names.code(names.get(name, thing)), names.code(thing)
    if known is not given and _place(known) != _place(given):
        raise ValueError(f"{kind} {name!r} is there already: choose another name")
    names.check(name, thing)
    names[name] = thing
    return thing


def _place(code: object) -> object:
    """Where something was defined: what is defined there again, by a reload or a cell, is newer."""
    place = getattr(code, "__module__", ""), getattr(code, "__qualname__", "<")
    return object() if "<" in place[1] else place


def mismatch(function: Any, *arguments: Any, **options: Any) -> str:
    """Why something cannot be called so, as far as that can be seen; empty if it can."""
    if not callable(function):
        return f"{function!r} is no function"
    try:
        inspect.signature(function).bind(*arguments, **options)
    except TypeError as error:
        return str(error)
    except ValueError:  # it tells nothing of its arguments
        return ""
    return ""


def check_name(key: str, name: str, known: Iterable[str], otherwise: str = "") -> None:
    """Raise a ValueError if a name is not known: with a close one, or what to do otherwise."""
    if name not in known:
        hint = suggestion(name, known)
        if otherwise and not hint.startswith("did"):
            hint = otherwise
        raise ValueError(f"{key} = {name!r} is not known: {hint}")


def suggestion(word: str, known: Iterable[str], prefix: str = "") -> str:
    """What somebody meant who wrote a word that is not known."""
    close = difflib.get_close_matches(str(word), list(known), n=1)
    if close:
        return f"did you mean {prefix + close[0]!r}?"
    return f"use {', '.join(prefix + name for name in known)}"
