"""What a metric is: measured by a function, summed up and shown as its entry says."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

from partavg.metrics.moment import Moment
from partavg.scores.score import ANY, Finish, Score, Sums, ratio
from partavg.sentences import inside

Row = dict[str, Any]
"""One line of metrics.jsonl: `step`, and what was measured after it."""

Value = Tensor | float | list[float] | Mapping[str, float] | None
"""A number or some, perhaps still on a GPU; None where nothing is due."""

Measure = Callable[[Moment], Value]
Kind = Literal["result", "spread", "cost"]
"""How good the models are, how far apart, and what that took: the order of tables and charts."""

When = Literal["step", "round", "end"]
Chart = Literal["none", "plain", "log"]
Better = Literal["higher", "lower", "neither"]

_LONGEST = 14  # letters of a number

UNITS = {"%": 100.0, "M": 1e-6, "MB": 1e-6}
"""What a value is multiplied by to be shown in a unit; in any other it is shown as it is."""

TAKES: dict[str, Callable[[Sequence[Any]], Any]] = {
    "last": lambda values: values[-1],
    "mean": lambda values: sum(values) / len(values),
    "peak": max,
    "lowest": min,
}
"""How a summary takes the values of a run."""


_SHOWN = ("title", "note", "unit", "kind", "when", "summary", "column", "form", "chart", "better")


class Column(NamedTuple):
    """A column of the comparison: a number of the summaries, its format and its scale."""

    heading: str
    key: str
    form: str
    scale: float


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is measured, and how summaries, tables, charts and progress show it.

    It is measured by a function of a `Moment`, or on the test set by one of (outputs, targets).
    """

    key: str
    """Its name in metrics.jsonl."""
    measure: Measure | None = None
    """A function of a `Moment`; None where there are `sums`, or something else writes it, as the
    server of a federation does."""
    title: str = ""
    """Of its chart."""
    note: str = ""
    """What stands below the title."""
    unit: str = ""
    """"%" shows 100 times the value, "M" and "MB" a millionth of it."""
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
    better: Better = "neither"
    """Which of two values is the better one; runs are not compared by one that does not say."""
    sums: Sums | None = None
    """A function of (outputs, targets) of a batch that returns a sum and a count."""
    finish: Finish = ratio
    """From the sum and the count of all batches to the number."""
    within: tuple[float, float] = ANY
    """What a sum by its count can be; what clients send beyond that is not believed."""

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
        for function in (self.measure, self.sums):
            if function is not None and not callable(function):
                raise ValueError(f"metric {self.key!r} measures {function!r}: give a function")
        if self.sums and (self.measure or self.when != "step"):
            raise ValueError(
                f"metric {self.key!r} has sums, which are measured on the test set: leave measure "
                f"and when out"
            )
        try:
            format(1.0, self.form), self.progress.format(1.0)
        except (ValueError, LookupError) as error:
            raise ValueError(
                f"metric {self.key!r} cannot be shown as {self.form!r} and {self.progress!r}: "
                f"{error}"
            ) from None

    @property
    def score(self) -> Score:
        """What an evaluation adds up for it."""
        if self.sums is None:
            raise ValueError(
                f"metric {self.key!r} is measured of a run: give one of (outputs, targets)"
            )
        return Score(self.key, self.sums, self.finish, within=self.within)

    def value(self, at: Moment) -> Value:
        """What is measured at a moment; None where nothing is."""
        if self.sums:
            return at.on_test.metrics.get(self.key) if at.evaluates_average else None
        return self.measure(at) if self.measure else None

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

    @property
    def called(self) -> str:
        """Its name in a sentence."""
        return inside(self.title or self.column.replace(" %", "") or self.key)

    def text(self, value: float) -> str:
        """A value as a table shows it, without its unit."""
        return number(self.scale * value, self.form)

    def shown(self, value: float) -> str:
        """Its newest value, as progress shows it."""
        return self.progress.format(_exact(self.scale * value, self.form))

    def appearance(self) -> Row:
        """How tables and charts show it: what is left of it without its code."""
        return {name: getattr(self, name) for name in _SHOWN}

    @classmethod
    def of_appearance(cls, key: str, values: Mapping[str, Any]) -> "Metric":
        """A metric that can be shown, not measured; a ValueError if it is damaged."""
        known = {name: values[name] for name in _SHOWN if name in values}
        for name, value in known.items():
            if not isinstance(value, list if name == "summary" else str):
                raise ValueError(f"{name} of metric {key!r} is {value!r}")
        if not re.fullmatch(r"[-+ #,_<>^=]*\d{0,2}(\.\d{1,2})?\w?%?", known.get("form", "")):
            raise ValueError(f"the form of metric {key!r} is {known['form']!r}")
        return cls(key, **{**known, "summary": tuple(known.get("summary", ("last",)))})

    def _kept_as(self, take: str) -> str:
        return self.key if take == "last" else f"{take}_{self.key}"


def distinct(metrics: Iterable[Metric]) -> list[Metric]:
    """Metrics of several runs, each once, in the order in which they come."""
    return list({metric.key: metric for metric in metrics}.values())


def number(value: float, form: str) -> str:
    """A number for a table; what is only rounding error reads as 0, and nothing else does.

    Numbers that are small by nature have a form with e.

    >>> number(76.04, ".1f"), number(0.0066, ".1f"), number(1e-12, ".1f"), number(8.7e22, ".1f")
    ('76.0', '0.0066', '0.0', '8.7e+22')
    >>> number(1e-12, ".1e")
    '1.0e-12'
    """
    text = format(_exact(value, form), form).rstrip(".")
    hidden = rounded(value) and not re.search("[1-9]", text)
    return f"{value:.2g}" if hidden or len(text) > _LONGEST else text


def _exact(value: float, form: str) -> float:
    return value if form.endswith("e") else rounded(value)


def rounded(value: float) -> float:
    """What is only rounding error is 0."""
    return 0.0 if abs(value) < 1e-9 else value
