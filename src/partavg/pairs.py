"""Schemes against a reference, seed by seed, and what so few pairs can tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import mean, stdev
from typing import Literal

from partavg.comparison import Result, mixed
from partavg.metrics.metric import Metric, number
from partavg.student import quantile, two_sided

LEVEL = 0.05
"""A difference is one if chance alone gives a larger one less often than this."""

ENOUGH = 3
"""Seeds from which on an interval tells something."""

Outcome = Literal["ahead", "behind", "tie", "one seed", "two seeds", "not compared"]

NOT_EVIDENCE = {1: "one seed: not evidence", 2: "two seeds: no interval"}
"""What is said of fewer."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two results by one metric, seed by seed: of the seeds that both have."""

    metric: Metric
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @classmethod
    def of(cls, one: Result, other: Result, metric: Metric) -> "Difference":
        """One result less another."""
        ours, theirs = (
            one.by_seed(metric.key, metric.scale),
            other.by_seed(metric.key, metric.scale),
        )
        both = [seed for seed in ours if seed in theirs]
        return cls(metric, tuple(ours[k] for k in both), tuple(theirs[k] for k in both))

    @property
    def turned(self) -> "Difference":
        """The other less the one."""
        return Difference(self.metric, self.theirs, self.ours)

    @property
    def seeds(self) -> int:
        """How many both have."""
        return len(self.ours)

    @property
    def gap(self) -> float:
        """The mean difference."""
        return mean(self.ours) - mean(self.theirs)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the true difference lies with 95 % confidence, by Student's t over pairs."""
        if not self.enough:
            return None
        reach = quantile(1 - LEVEL, self.seeds - 1) * self._error
        return self.gap - reach, self.gap + reach

    @property
    def p(self) -> float | None:
        """How often chance alone gives as large a mean difference, by the paired t test."""
        if not self.enough:
            return None
        if not self._error:
            return 1.0 if self.gap == 0 else 0.0
        return two_sided(self.gap / self._error, self.seeds - 1)

    @property
    def enough(self) -> bool:
        """Whether there are pairs enough, all of them numbers."""
        return self.seeds >= ENOUGH and all(map(isfinite, (*self.ours, *self.theirs)))

    @property
    def level(self) -> bool:
        """Whether both read the same."""
        return self.text(mean(self.ours)) == self.text(mean(self.theirs))

    def text(self, value: float) -> str:
        """A value with its unit."""
        unit = " %" if self.metric.unit == "%" else ""
        return f"{value:{self.metric.form}}{unit}"

    @property
    def size(self) -> str:
        """How far apart they are: 4.80 points of accuracy."""
        of = "points of " if self.metric.unit == "%" else "of "
        return f"{abs(self.gap):{self.metric.form}} {of}{self.metric.called}"

    @property
    def means(self) -> str:
        """Both means: 76.90 % against 72.10 %."""
        return f"{self.text(mean(self.ours))} against {self.text(mean(self.theirs))}"

    @property
    def range(self) -> str:
        """The interval in words, or why there is none."""
        if self.interval is None:
            return NOT_EVIDENCE.get(self.seeds, "no interval")
        low, high = (f"{end:{self.metric.form}}".replace("-", "−") for end in self.interval)
        return f"95 % interval of the difference {low} to {high}"

    @property
    def cell(self) -> str:
        """The difference in a table: +0.84 [+0.12, +1.56]."""
        if not self.seeds:
            return "–"
        gap, *ends = map(self._signed, (self.gap, *(self.interval or ())))
        return f"{gap} [{', '.join(ends)}]" if ends else gap

    def _signed(self, value: float) -> str:
        """A number of a cell; beside an end that reads as more, one too small to read is 0."""
        form = self.metric.form
        zero, size, *ends = (f"{abs(v):{form}}" for v in (0.0, value, *(self.interval or ())))
        small = size == zero and any(end != zero for end in ends)
        return ("−" if value < 0 else "+") + (size if small else number(abs(value), form))

    @property
    def _error(self) -> float:
        """The standard error of the gap; what is only rounding error is none."""
        apart = [one - other for one, other in zip(self.ours, self.theirs, strict=True)]
        error = stdev(apart) / sqrt(self.seeds)
        return error if error > 1e-12 * max(map(abs, (*self.ours, *self.theirs))) else 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """A scheme against the reference, among all that are compared with it."""

    scheme: str
    reference: str
    difference: Difference
    adjusted: float | None
    """The p-value after Holm's correction for all comparisons."""
    outcome: Outcome

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of this difference alone, not corrected."""
        return self.difference.interval

    @property
    def p(self) -> float | None:
        """The p-value of this difference alone."""
        return self.difference.p

    @property
    def mark(self) -> str:
        """What stands beside a difference that is none, or that few seeds cannot tell."""
        return self.outcome if self.outcome in ("tie", "one seed", "two seeds") else ""

    @property
    def cell(self) -> str:
        """The difference, its interval and its mark: +0.84 [−0.12, +1.80] tie."""
        return f"{self.difference.cell} {self.mark}".strip()


def compared(found: Sequence[Result], metric: Metric, base: Result | None = None) -> list[Compared]:
    """Each scheme against the reference: ahead or behind if p < 0.05 after Holm's correction.

    The reference is `base` or, without one, what `reference` says. Empty where there is nothing to
    compare, or where only some were judged on validation samples.
    """
    known = [result for result in found if result.values(metric.key)]
    if len(known) < 2 or mixed(known):
        return []
    base = base or reference(known, metric)
    others = [result for result in known if result is not base]
    apart = [Difference.of(result, base, metric) for result in others]
    tested = [(place, one.p) for place, one in enumerate(apart) if one.p is not None]
    corrected = holm([p for _, p in tested])
    adjusted = {place: p for (place, _), p in zip(tested, corrected, strict=True)}
    return [
        Compared(result.scheme, base.scheme, one, adjusted.get(place),
                 _outcome(one, adjusted.get(place)))
        for place, (result, one) in enumerate(zip(others, apart, strict=True))
    ]  # fmt: skip


def reference(found: Sequence[Result], metric: Metric) -> Result:
    """What the others are compared with: periodic averaging or, without it, the best mean."""
    return next((one for one in found if one.scheme == "periodic"), best(found, metric))


def best(found: Sequence[Result], metric: Metric) -> Result:
    """The result with the best mean."""
    return ranked(found, metric)[0]


def ranked(found: Sequence[Result], metric: Metric) -> list[Result]:
    """Results by their means, the best first; what is no number comes last."""
    sign = -1 if metric.better == "lower" else 1

    def worth(result: Result) -> float:
        value = mean(result.values(metric.key))
        return -sign * value if isfinite(value) else inf

    return sorted(found, key=worth)


def holm(values: Sequence[float]) -> list[float]:
    """P-values of several comparisons, corrected so that all together err in 5 % of cases.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    found, so_far = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        so_far = max(so_far, min(1.0, (len(values) - rank) * values[place]))
        found[place] = so_far
    return found


def how(found: Sequence[Compared]) -> str:
    """How schemes were compared, for a caption; empty where none were."""
    if not found:
        return ""
    told = {one.difference.seeds for one in found if one.p is not None}
    few = sorted({one.difference.seeds for one in found} & NOT_EVIDENCE.keys())
    said = [NOT_EVIDENCE[seeds] for seeds in few]
    if told:
        count = f"{min(told)} to {max(told)}" if len(told) > 1 else str(*told)
        tests = sum(one.p is not None for one in found)
        said.insert(
            0,
            f"paired by seed ({count} seeds), 95 % intervals, each for itself; tie: no difference "
            f"that the seeds can tell, p ≥ {LEVEL:g} by Holm over {tests} "
            f"comparison{'s' if tests > 1 else ''}",
        )
    said = said or ["no seed in common"]
    first = found[0]
    return f"Against {first.reference} by {first.difference.metric.called}: {'; '.join(said)}."


def _outcome(found: Difference, adjusted: float | None) -> Outcome:
    if adjusted is None:
        few: dict[int, Outcome] = {1: "one seed", 2: "two seeds"}
        return few.get(found.seeds, "not compared")
    if adjusted >= LEVEL:
        return "tie"
    return "ahead" if (found.gap > 0) == (found.metric.better != "lower") else "behind"
