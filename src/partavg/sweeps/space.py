"""What a sweep tries: values of settings, listed or drawn."""

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from partavg.config_toml import assignment
from partavg.core.seeds import fold
from partavg.sentences import shown

Point = tuple[tuple[str, Any], ...]
"""A value for every setting that is tuned."""

_DRAWN = re.compile(r"(\w+)\(([^()]*)\)")
_RANGES = ("uniform", "loguniform")
_MOST = 10_000  # settings of a scheme
_ONE_TASK = "settings are compared on one task; run a sweep of each, by --set"
_FIXED = {
    "training.seed": "fresh seeds are what settings are tested with",
    "training.scale": "settings are compared with one budget",
    "training.steps": "settings are compared with one budget",
    "training.epochs": "settings are compared with one budget",
    "training.validation": "it is what settings are chosen on; use --validation",
    "training.workers": _ONE_TASK,
    "participation.fraction": _ONE_TASK,
}
_FIXED_SECTIONS = {
    "data": _ONE_TASK,
    "split": _ONE_TASK,
    "attack": _ONE_TASK,
    "engine": "all runs of a sweep compute in the same way",
    "metrics": "settings are compared by what is measured of all",
    "checkpoints": "what is saved changes no result",
}


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting and what is tried of it: `values`, or numbers between two `ends`."""

    key: str
    values: tuple[Any, ...] = ()
    ends: tuple[float, float] | None = None
    log: bool = False
    """Whether numbers are drawn evenly on a logarithmic scale."""

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """An axis from `key=value,value,…` or `key=loguniform(low, high)`.

        >>> Axis.parse("training.lr=0.1,0.2").values, Axis.parse("solver.mu=uniform(1, 3)").ends
        ((0.1, 0.2), (1.0, 3.0))
        """
        key, equals, given = text.partition("=")
        key, given = key.strip(), given.strip()
        if not (equals and key):
            raise ValueError(
                f"grid {text!r} is not of the form key=value,value: use training.lr=0.1,0.2 or "
                f"training.lr=loguniform(0.01, 1)"
            )
        section, dot, _ = key.partition(".")
        if why := _FIXED.get(key) or (dot and _FIXED_SECTIONS.get(section)):
            raise ValueError(f"{key} cannot be tuned: {why}")
        if found := _DRAWN.fullmatch(given):
            return cls._drawn(key, *found.groups())
        return cls.listed(key, _values(given), text)

    @classmethod
    def listed(cls, key: str, values: Sequence[Any], text: str = "") -> "Axis":
        """An axis of some values: numbers, texts, truth values, or lists of these."""
        text = text or key
        values = [value.item() if getattr(value, "ndim", None) == 0 else value for value in values]
        if not values:
            raise ValueError(f"grid {text!r} has no value: list some, like training.lr=0.1,0.2")
        strange = [
            value for value in values if not isinstance(value, bool | int | float | str | list)
        ]
        if strange:
            raise ValueError(
                f"grid {text!r} has {shown(strange[0])}, which cannot be written down: use "
                f"numbers, texts or lists of them"
            )
        twice = [value for place, value in enumerate(values) if value in values[:place]]
        if twice:
            raise ValueError(f"grid {text!r} names {twice[0]!r} twice: name each value once")
        return cls(key, tuple(values))

    @classmethod
    def _drawn(cls, key: str, kind: str, inside: str) -> "Axis":
        if kind not in _RANGES:
            raise ValueError(
                f"{key}={kind}({inside}) is no way to draw: use {' or '.join(_RANGES)}"
            )
        try:
            low, high = (float(end) for end in inside.split(","))
        except ValueError:
            raise ValueError(f"{key}={kind}({inside}): give two numbers, {kind}(0.01, 1)") from None
        log = kind == "loguniform"
        if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not log)):
            least = "numbers above 0" if log else "finite numbers"
            raise ValueError(f"{key}={kind}({inside}): give {least}, the lower first")
        return cls(key, ends=(low, high), log=log)

    def draw(self, generator: np.random.Generator) -> Any:
        """One value, with four digits if it is a number that is drawn."""
        if self.ends is None:
            return self.values[generator.integers(len(self.values))]
        low, high = self.ends
        if self.log:
            return float(f"{math.exp(generator.uniform(math.log(low), math.log(high))):.4g}")
        return float(f"{generator.uniform(low, high):.4g}")

    def of_those(self, tried: Sequence[Any]) -> "Axis":
        """The axis of the values that were tried: those drawn, or of a list what a budget left."""
        known = tried if self.ends else [value for value in self.values if value in tried]
        return replace(self, values=tuple(known))

    def edge(self, value: Any) -> str:
        """Whether the best value is the "smallest" or the "largest" of those tried; empty if not.

        Numbers that are drawn must lie in a tenth of the range there, too.
        """
        if self.ends is None:
            numbers = sorted(v for v in self.values if _is_number(v))
            if len(numbers) < len(self.values) or len(numbers) < 2:
                return ""
            return {numbers[0]: "smallest", numbers[-1]: "largest"}.get(value, "")
        low, high, at = (math.log(v) if self.log else v for v in (*self.ends, value))
        place = (at - low) / (high - low)
        smallest, largest = min(self.values, default=value), max(self.values, default=value)
        if place < 0.1 and value == smallest:
            return "smallest"
        return "largest" if place > 0.9 and value == largest else ""

    def __str__(self) -> str:
        """As it was given."""
        if self.ends is None:
            return f"{self.key}={','.join(assignment('', v)[1:] for v in self.values)}"
        return f"{self.key}={'loguniform' if self.log else 'uniform'}{self.ends}"


def axes_of(texts: Sequence[str]) -> tuple[Axis, ...]:
    """The axes of a sweep, each setting once."""
    axes = tuple(map(Axis.parse, texts))
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"{key} is swept twice: give all its values in one --grid")
    return axes


def points(axes: Sequence[Axis], most: int | None, seed: int) -> list[Point]:
    """What is tried of each scheme: every combination, or so many, drawn, if there are more.

    >>> points(axes_of(["training.lr=0.1,0.2"]), None, seed=0)
    [(('training.lr', 0.1),), (('training.lr', 0.2),)]
    """
    if any(axis.ends for axis in axes):
        if most is None:
            raise ValueError(
                "values that are drawn never end: say by --budget how many runs to use"
            )
        return _draws(axes, most, seed)
    sizes = [len(axis.values) for axis in axes]
    size = math.prod(sizes)
    if min(size, most or size) > _MOST:
        raise ValueError(
            f"{min(size, most or size)} settings for each scheme are more than {_MOST}: list fewer "
            f"values, or say by --budget how many runs to use"
        )
    if most is None or size <= most:
        every = product(*(axis.values for axis in axes))
        return [tuple(zip((a.key for a in axes), values, strict=True)) for values in every]
    generator = np.random.default_rng(fold(seed, "sweep"))
    kept = np.sort(generator.choice(size, most, replace=False))
    places = zip(*(each.tolist() for each in np.unravel_index(kept, sizes)), strict=True)
    return [
        tuple((axis.key, axis.values[at]) for axis, at in zip(axes, place, strict=True))
        for place in places
    ]


def _draws(axes: Sequence[Axis], count: int, seed: int) -> list[Point]:
    """Each draw is a function of its number: with a larger budget the first ones stay."""
    generators = (np.random.default_rng(fold(seed, "sweep", number)) for number in range(count))
    return [tuple((axis.key, axis.draw(generator)) for axis in axes) for generator in generators]


def overrides(point: Point) -> list[str]:
    """What gives a recipe these settings."""
    return [assignment(key, value) for key, value in point]


def called(point: Point) -> str:
    """Settings in words: lr = 0.1, solver = adam; by whole keys where words would be the same."""
    keys = [key.removesuffix(".name") for key, _ in point]
    words = [key.rpartition(".")[2] for key in keys]
    names = [word if words.count(word) == 1 else key for key, word in zip(keys, words, strict=True)]
    return ", ".join(f"{name} = {_text(v)}" for name, (_, v) in zip(names, point, strict=True))


def _text(value: Any) -> str:
    return f"{value:g}" if _is_number(value) else assignment("", value)[1:]


def _values(given: str) -> tuple[Any, ...]:
    """Values separated by commas, as TOML has them; what is none is a text."""
    if not given:
        return ()
    try:
        return tuple(tomllib.loads(f"values = [{given}]")["values"])
    except tomllib.TOMLDecodeError:
        pieces = [piece.strip() for piece in given.split(",")]
        if not all(pieces):
            raise ValueError(f"{given!r} has an empty value: list values like 0.1,0.2") from None
        return tuple(map(_value, pieces))


def _value(piece: str) -> Any:
    try:
        return tomllib.loads(f"value = {piece}")["value"]
    except tomllib.TOMLDecodeError:
        return piece


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
