"""Tables of names: what a recipe calls "resnet20" or "scaffold", and what others add to them."""

import difflib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, overload

from partavg.own_code import executed, is_own
from partavg.sentences import shown

if TYPE_CHECKING:  # importing it takes a tenth of the time that help takes
    from importlib.metadata import EntryPoint

Thing = TypeVar("Thing")

_LONGEST = 200  # letters of a list of names in an error

_HOMES = {
    "adapt": "partavg.core.adapt:ADAPTS",
    "aggregate": "partavg.aggregates:AGGREGATES",
    "attack": "partavg.attacks:ATTACKS",
    "data": "partavg.data:DATASETS",
    "loss": "partavg.losses:LOSSES",
    "lr_schedule": "partavg.core.rates:RATES",
    "metric": "partavg.metrics.table:METRICS",
    "model": "partavg.models:MODELS",
    "pace": "partavg.core.pace:PACES",
    "partition": "partavg.core.cuts:PARTITIONS",
    "sink": "partavg.sinks:SINKS",
    "solver": "partavg.solvers:SOLVERS",
    "split": "partavg.data.split:SPLITS",
}
"""Where the table of each kind is; imported when it is first asked for."""

KINDS = tuple(_HOMES)

_CALLED = {"data": "dataset", "lr_schedule": "learning-rate schedule"}
"""What a kind is called in a sentence, where that is not its own word."""


class Names(dict[str, Thing]):
    """What the names of one kind stand for: those of the table, of installed packages, of files.

    >>> Names("fruit", {"fig": 1, "pear": 2}).find("per")
    Traceback (most recent call last):
    ValueError: fruit 'per' is not known: did you mean 'pear'? (fig, pear or your own file.py:name)
    """

    common: tuple[str, ...] = ()
    """Options that everything of this kind has beside its own."""

    def __init__(self, kind: str, known: Mapping[str, Thing]) -> None:
        super().__init__(known)
        self.kind = kind
        self.called = _CALLED.get(kind, kind)
        self._built_in = frozenset(known)

    def find(self, name: str, key: str = "") -> Thing:
        """What a name stands for; `key` is where it was given, for the error if it is unknown.

        `file.py:name` and `package.module:name` are imported, as are the names that installed
        packages add: when they are asked for, not before.
        """
        if not isinstance(name, str):
            where = key or self.called
            raise ValueError(f"{where} {shown(name)} is no name: give a text")
        if name in self:
            return self[name]
        said = f"{key} = {name!r}" if key else f"{self.called} {name!r}"
        own = is_own(name)
        points = [] if own else [p for p in _entry_points(self.kind) if p.name == name]
        if not (own or points):
            raise ValueError(f"{said} is not known: {self._hint(name)}")
        try:
            return self.admitted(name, _attribute(name) if own else _loaded(points))
        except ValueError as error:
            raise ValueError(f"{said} cannot be used: {error}") from error.__cause__

    def is_built_in(self, name: str) -> bool:
        """Whether a name came with the package."""
        return name in self._built_in

    def admitted(self, name: str, thing: Any) -> Thing:
        """What was imported, if it can be of this kind."""
        self.check(name.rpartition(":")[2], thing)
        found: Thing = thing
        return found

    def offered(self) -> list[str]:
        """The names to choose from, those of installed packages among them."""
        return list(dict.fromkeys([*self, *(point.name for point in _entry_points(self.kind))]))

    def _hint(self, name: str) -> str:
        if str(name).endswith(".py"):
            return f"write {name}:name, with what you mean in that file"
        known = self.offered()
        hint, listed = suggestion(name, known), _listed(known)
        if hint.startswith("did"):
            return f"{hint} ({listed} or your own file.py:name)"
        return f"use {listed} or your own file.py:name" if known else "write file.py:name"

    def code(self, thing: Thing) -> object:
        """The class or function that a thing is made of."""
        return thing

    def check(self, name: str, thing: Thing) -> None:
        """Raise a ValueError if a thing from outside cannot have this name."""
        if not callable(thing):
            raise ValueError(f"{thing!r} cannot be a {self.called}: give a class or a function")


def _attribute(name: str) -> Any:
    """What `file.py:name` or `package.module:name` stands for."""
    place, _, attribute = name.rpartition(":")
    if not place or not all(part.isidentifier() for part in attribute.split(".")):
        raise ValueError("write file.py:name or package.module:name")
    found: Any = executed(name).module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = _public(found)
            hint = suggestion(part, known) if known else "define it there"
            raise ValueError(f"{place} has no {part!r}: {hint}")
        found = getattr(found, part)
    return found


def _public(found: object) -> list[str]:
    """What can be named in a module or a class."""
    inside = getattr(found, "__dict__", {}).items()
    return [name for name, value in inside if name[0] != "_" and not inspect.ismodule(value)]


def _entry_points(kind: str) -> "Iterable[EntryPoint]":
    """The names of a kind that installed packages have, in the group `partavg.kind`."""
    from importlib.metadata import entry_points

    return entry_points(group=f"partavg.{kind}")


def _loaded(points: "list[EntryPoint]") -> Any:
    """What installed packages call so, which must be one thing."""
    packages = sorted({point.dist.name if point.dist else point.module for point in points})
    if len({point.value for point in points}) > 1:
        raise ValueError(f"packages {' and '.join(packages)} both have one: name it as module:name")
    try:
        return points[0].load()
    except Exception as error:
        raise ValueError(
            f"package {packages[0]}, which has it, cannot be imported: {type(error).__name__}: "
            f"{error}; update or remove that package"
        ) from error


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

    Kinds are model, data, split, partition, solver, loss, lr_schedule, adapt, pace, aggregate,
    attack, metric, sink.
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
            f"{shown(name)} cannot name a {kind}: use letters, digits, '_', '-' and '.', a "
            f"letter first"
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
        return f"{shown(function)} is no function"
    try:
        inspect.signature(function).bind(*arguments, **options)
    except TypeError as error:
        return str(error)
    except ValueError:  # it tells nothing of its arguments
        return ""
    return ""


def fitting(
    function: Any, offered: Mapping[str, Any], options: Iterable[str] = ()
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Of what is offered, the arguments that a function takes beside its options.

    Those that it has by these names; all, in order, if its arguments have other names; none if it
    has none, or only such as have defaults.

    >>> fitting(lambda classes: None, {"shape": (5,), "classes": 3})
    ((), {'classes': 3})
    >>> fitting(lambda inputs, outputs: None, {"shape": (5,), "classes": 3})
    (((5,), 3), {})
    >>> fitting(lambda width=8: None, {"shape": (5,), "classes": 3})
    ((), {})
    """
    everything = tuple(offered.values()), dict[str, Any]()
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # it tells nothing of its arguments
        return everything
    places = {
        p.name: p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in options
    }
    named = {
        name: value
        for name, value in offered.items()
        if name in places and places[name].kind is not inspect.Parameter.POSITIONAL_ONLY
    }
    needed = {name for name, p in places.items() if p.default is p.empty}
    if named and needed <= named.keys():
        return (), named
    rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return everything if needed or rest else ((), {})


def check_name(key: str, name: str, known: Iterable[str], otherwise: str = "") -> None:
    """Raise a ValueError if a name is not known: with a close one, or what to do otherwise."""
    if not isinstance(name, str) or name not in known:
        hint = suggestion(name, known)
        if otherwise and not hint.startswith("did"):
            hint = otherwise
        raise ValueError(f"{key} = {shown(name)} is not known: {hint}")


def suggestion(word: str, known: Iterable[str], prefix: str = "") -> str:
    """What somebody meant who wrote a word that is not known."""
    close = difflib.get_close_matches(str(word), list(known), n=1)
    if close:
        return f"did you mean {prefix + close[0]!r}?"
    return f"use {_listed(prefix + name for name in known)}"


def _listed(names: Iterable[str]) -> str:
    return textwrap.shorten(", ".join(names), _LONGEST, placeholder=" …")
