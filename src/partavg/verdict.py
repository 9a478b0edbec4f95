"""What a comparison found, in plain sentences that claim no more than its seeds tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

from partavg.comparison import Result, caveat
from partavg.metrics import table
from partavg.metrics.metric import Metric

_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
      2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip
"""Student's t at 97.5 %, by degrees of freedom from 1; beyond them it is 2.09 or less."""


def verdict(found: Sequence[Result]) -> str:
    """What was seen, of partial against periodic averaging where both are there."""
    summaries = [summary for result in found for summary in result.summaries]
    said = caveat(summaries)
    seen = _seen([result for result in found if result.summaries])
    return f"{said.capitalize()}. {seen}" if said else seen


def main_metric(found: Sequence[Result]) -> Metric | None:
    """What results are compared by."""
    summaries = [summary for result in found for summary in result.summaries]
    return table.main_metric(summaries, [metric for each in found for metric in each.metrics])


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
    def seeds(self) -> int:
        """How many both have."""
        return len(self.ours)

    @property
    def gap(self) -> float:
        """The mean difference."""
        return mean(self.ours) - mean(self.theirs)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true difference lies with 95 % confidence, by Student's t over pairs."""
        apart = [one - other for one, other in zip(self.ours, self.theirs, strict=True)]
        reach = _T[min(self.seeds - 1, len(_T)) - 1] * stdev(apart) / sqrt(self.seeds)
        return self.gap - reach, self.gap + reach

    @property
    def level(self) -> bool:
        """Whether both read the same."""
        return self.text(mean(self.ours)) == self.text(mean(self.theirs))

    @property
    def noise(self) -> bool:
        """Whether several seeds cannot tell who is ahead."""
        low, high = self.interval if self.seeds > 1 else (1.0, 1.0)
        return low <= 0 <= high

    def text(self, value: float) -> str:
        """A value with its unit."""
        unit = " %" if self.metric.unit == "%" else ""
        return f"{value:{self.metric.form}}{unit}"

    @property
    def size(self) -> str:
        """How far apart they are: 4.80 points of accuracy."""
        of = "points of " if self.metric.unit == "%" else "of "
        return f"{abs(self.gap):{self.metric.form}} {of}{name(self.metric)}"

    @property
    def means(self) -> str:
        """Both means: 76.90 % against 72.10 %."""
        return f"{self.text(mean(self.ours))} against {self.text(mean(self.theirs))}"

    @property
    def range(self) -> str:
        """The interval in words."""
        low, high = (f"{end:{self.metric.form}}".replace("-", "−") for end in self.interval)
        return f"95 % interval of the difference {low} to {high}"


def name(metric: Metric) -> str:
    """What a metric is called in a sentence."""
    return (metric.title or metric.column.replace(" %", "") or metric.key).lower()


def _seen(found: Sequence[Result]) -> str:
    by_scheme = {result.scheme: result for result in found}
    metric = main_metric(found)
    if metric is None:
        return "There is no result that all runs have, so that they cannot be compared."
    if not {"periodic", "partial"} <= by_scheme.keys():
        return _best(found, metric)
    partial, periodic = by_scheme["partial"], by_scheme["periodic"]
    difference = Difference.of(partial, periodic, metric)
    if not difference.seeds:
        return "Partial and periodic averaging have no seed in common, and cannot be compared."
    return (
        f"{_traffic(partial, periodic)}, partial averaging ended {_against(difference)}"
        f"{_discrepancy(partial, periodic)}."
    )


def _against(found: Difference) -> str:
    """How far from periodic averaging it ended, and whether the seeds can tell."""
    one = " in one seed, which does not tell how much seeds differ"
    if found.level:
        seeds = one if found.seeds == 1 else f", mean of {found.seeds} seeds"
        value = found.text(mean(found.ours))
        return f"level with periodic averaging in {name(found.metric)}, at {value}{seeds}"
    side = "above" if found.gap > 0 else "below"
    if found.seeds == 1:
        return f"{found.size} {side} periodic averaging ({found.means}){one}"
    if found.noise:
        return (
            f"within the noise of {found.seeds} seeds of periodic averaging: {found.size} {side} "
            f"it ({found.means}; {found.range})"
        )
    seeds = f"{found.range}, {found.seeds} seeds"
    return f"{found.size} {side} periodic averaging ({found.means}; {seeds})"


def _best(found: Sequence[Result], metric: Metric) -> str:
    """Who ended best, if the seeds can tell."""
    worth = "highest" if metric.better == "higher" else "lowest"
    sign = 1 if metric.better == "higher" else -1
    ranked = sorted(found, key=lambda result: -sign * mean(result.values(metric.key)))
    best, called = ranked[0], name(metric)
    shown = Difference.of(best, best, metric)
    value = shown.text(mean(shown.ours))
    seeds = "one seed" if shown.seeds == 1 else f"{shown.seeds} seeds"
    if len(ranked) == 1:
        return f"{best.scheme} ended with the {called} {value} ({seeds})."
    rivals = [Difference.of(best, other, metric) for other in ranked[1:]]
    if not all(rival.seeds for rival in rivals):
        return "These schemes have no seed in common, and cannot be compared."
    level = [other.scheme for other, d in zip(ranked[1:], rivals, strict=True) if d.level]
    if level:
        names = f"{', '.join([best.scheme, *level][:-1])} and {level[-1]}"
        return f"{names} ended level with the {worth} {called}: {value} ({seeds})."
    first = rivals[0]
    if first.seeds == 1:
        return (
            f"{best.scheme} ended with the {worth} {called}: {value}, in one seed, which does not "
            f"tell how much seeds differ."
        )
    if first.noise:
        return (
            f"{best.scheme} ended with the {worth} mean {called}, {value}, but its lead over "
            f"{ranked[1].scheme} is within the noise of {first.seeds} seeds ({first.range})."
        )
    return (
        f"{best.scheme} ended with the {worth} {called}: {value}, ahead of {ranked[1].scheme} "
        f"({first.range}, {first.seeds} seeds)."
    )


def _traffic(partial: Result, periodic: Result) -> str:
    ours, theirs = partial.values("bytes"), periodic.values("bytes")
    if not (ours and theirs):
        return "Where traffic was not counted"
    if not mean(theirs):
        return "While periodic averaging sent nothing yet"
    ratio = mean(ours) / mean(theirs)
    return "At the same traffic" if abs(ratio - 1) < 0.01 else f"At {ratio:.2f} times the traffic"


def _discrepancy(partial: Result, periodic: Result) -> str:
    ours, theirs = (each.values("peak_discrepancy") for each in (partial, periodic))
    if not (ours and theirs):
        return ""
    if mean(ours) == mean(theirs) == 0:
        return "; there was no discrepancy between the models"
    if mean(theirs) <= 1e-6 * mean(ours):
        return (
            "; the discrepancy of periodic averaging was measured right after averaging only, "
            "where it is 0"
        )
    ratio = mean(ours) / mean(theirs)
    return f"; the peak discrepancy between the models was {ratio:.2f} times that of periodic"
