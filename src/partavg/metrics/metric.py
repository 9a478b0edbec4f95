"""What a metric is: measured by a function, summed up and shown as its entry says."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

from partavg.metrics.moment import Moment

Row = dict[str, Any]
"""One line of metrics.jsonl: `step`, and what was measured after it."""

Value = Tensor | float | list[float] | Mapping[str, float] | None
"""A number or some, perhaps still on a GPU; None where nothing is due."""

Measure = Callable[[Moment], Value]
Kind = Literal["result", "spread", "cost"]
"""How good the models are, how far apart, and what that took: the order of tables and charts."""

When = Literal["step", "round", "end"]
Chart = Literal["none", "plain", "log"]
Better = Literal["higher", "lower"]

UNITS = {"%": 100.0, "MB": 1e-6}
"""What a value is multiplied by to be shown in a unit; in any other it is shown as it is."""

TAKES: dict[str, Callable[[Sequence[Any]], Any]] = {
    "last": lambda values: values[-1],
    "mean": lambda values: sum(values) / len(values),
    "peak": max,
    "lowest": min,
}
"""How a summary takes the values of a run."""


class Column(NamedTuple):
    """A column of the comparison: a number of the summaries, its format and its scale."""

    heading: str
    key: str
    form: str
    scale: float


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is measured, and how summaries, tables, charts and progress show it."""

    key: str
    """Its name in metrics.jsonl."""
    measure: Measure | None = None
    """None where something else writes it, as the server of a federation does."""
    title: str = ""
    """Of its chart."""
    note: str = ""
    """What stands below the title."""
    unit: str = ""
    """"%" shows 100 times the value, "MB" a millionth of it."""
    better: Better = "higher"
    """Which of two values is the better one."""
    kind: Kind = "result"
    when: When = "step"
    """After each step; at the end of rounds, before averaging, as often as
    `metrics.round_losses_every` says; or once, after all steps, for the summary only."""
    summary: tuple[str, ...] = ("last",)
    """Which of TAKES a summary holds: the last under its key, the mean as `mean_key`."""
    column: str = ""
    """The heading in the comparison; without one there is no column."""
    form: str = ".4g"
    """The format of the numbers in that column."""
    chart: Chart = "plain"
    """A curve against the step; whether a logarithmic scale may be asked for."""
    progress: str = ""
    """How progress shows it, for example "loss {:.3f}"; empty is not at all."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]\w*", self.key, re.ASCII):
            raise ValueError(
                f"metric {self.key!r} cannot name a column: use small letters, digits and _"
            )
        for take in self.summary:
            if take not in TAKES:
                raise ValueError(
                    f"metric {self.key!r} cannot be summarized by {take!r}: use {', '.join(TAKES)}"
                )
        for name, known in (("kind", Kind), ("when", When), ("chart", Chart), ("better", Better)):
            if getattr(self, name) not in get_args(known):
                given, choices = getattr(self, name), ", ".join(get_args(known))
                raise ValueError(f"metric {self.key!r} has {name} {given!r}: use {choices}")
        if self.measure is not None and not callable(self.measure):
            raise ValueError(f"metric {self.key!r} measures {self.measure!r}: give a function")
        try:
            format(1.0, self.form), self.progress.format(1.0)
        except (ValueError, LookupError) as error:
            raise ValueError(
                f"metric {self.key!r} cannot be shown as {self.form!r} and {self.progress!r}: "
                f"{error}"
            ) from None

    @property
    def only_one(self) -> bool:
        """Whether it must be a single number to be shown."""
        return bool(self.column or self.progress or set(self.summary) - {"last"})

    @property
    def names(self) -> set[str]:
        """What it is called in rows and in summaries."""
        return {self.key, *map(self._kept_as, self.summary)}

    @property
    def scale(self) -> float:
        """What its value is multiplied by to be shown."""
        return UNITS.get(self.unit, 1.0)

    @property
    def columns(self) -> list[Column]:
        """Its columns in the comparison."""
        taken = self.summary if self.column else ()
        headings = [self.column if take == "last" else f"{take} {self.column}" for take in taken]
        return [
            Column(heading, self._kept_as(take), self.form, self.scale)
            for heading, take in zip(headings, taken, strict=True)
        ]

    def summarized(self, values: Sequence[Any]) -> Row:
        """What a summary holds of its values; nothing of one that is measured at the end."""
        if self.when == "end" or not values:
            return {}
        return {self._kept_as(take): TAKES[take](values) for take in self.summary}

    def shown(self, value: float) -> str:
        """Its newest value, as progress shows it."""
        return self.progress.format(rounded(self.scale * value))

    def _kept_as(self, take: str) -> str:
        return self.key if take == "last" else f"{take}_{self.key}"


def number(value: float, form: str) -> str:
    """A number for a table; what is only rounding error reads as 0."""
    return format(rounded(value), form).rstrip(".")


def rounded(value: float) -> float:
    """What is only rounding error is 0."""
    return 0.0 if abs(value) < 1e-9 else value
