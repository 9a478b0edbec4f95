"""What a sweep found: best settings, how much they matter, and what is to be doubted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from partavg.comparison import Result, StartedRun, results
from partavg.metrics.metric import Metric
from partavg.sweeps.outcome import better, outcome
from partavg.sweeps.runner import Sweeping
from partavg.sweeps.search import Tried, best, metric_of
from partavg.sweeps.space import Axis, called


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was tried of a scheme."""

    scheme: str
    tried: tuple[Tried, ...]
    axes: tuple[Axis, ...]
    metric: Metric | None
    seeds: int = 1
    """By whose mean settings are chosen."""

    @property
    def chosen(self) -> Tried | None:
        """The best settings."""
        return best(self.tried)

    @property
    def by(self) -> str:
        """How many seeds chose, in words."""
        return "one seed" if self.seeds == 1 else f"the mean of {self.seeds} seeds"

    @property
    def diverged(self) -> int:
        """How many settings made training diverge."""
        return sum(one.outcome.diverged for one in self.tried)

    def edges(self) -> list[str]:
        """The settings whose best value is the last one tried, and no other as good, in words."""
        if self.chosen is None:
            return []
        values = dict(self.chosen.trial.point)
        tried = [dict(one.trial.point) for one in self.tried]
        axes = [axis.of_those([point[axis.key] for point in tried]) for axis in self.axes]
        found = ((axis, axis.edge(values[axis.key])) for axis in axes if self._tells(axis))
        return [
            f"{axis.key} = {values[axis.key]:g} is the {edge} tried of {self.scheme}"
            for axis, edge in found
            if edge
        ]

    def _tells(self, axis: Axis) -> bool:
        """Whether a value of a setting is better than all others of it."""
        reached = [value for _, value in self.curve(axis)]
        best = self.chosen.outcome.value if self.chosen else None
        return sum(value == best for value in reached) == 1

    @property
    def level(self) -> int:
        """How many settings are as good as those chosen, which were the first of them."""
        best = self.chosen and self.chosen.outcome.value
        whole = [one for one in self.tried if one.trial.until is None]
        return sum(one.outcome.value == best for one in whole) - 1 if self.chosen else 0

    def curve(self, axis: Axis) -> list[tuple[Any, float]]:
        """For every value of a setting the best that was reached with it, over all others."""
        found: dict[Any, float] = {}
        for one in self.tried:
            value, reached = dict(one.trial.point)[axis.key], one.outcome.value
            if not isinstance(value, int | float) or one.trial.until is not None:
                continue
            if reached is None or self.metric is None:
                continue
            if value not in found or better(self.metric, reached, found[value]):
                found[value] = reached
        return sorted(found.items())

    def value(self, one: Tried | None) -> str:
        """What settings reached, as the metric is written."""
        if one is None or one.outcome.value is None or self.metric is None:
            return "diverged"
        unit = " %" if self.metric.unit == "%" else ""
        return f"{one.outcome.value * self.metric.scale:{self.metric.form}}{unit}"


def tuned(sweeping: Sweeping) -> list[Tuned]:
    """What was tried of each scheme."""
    found = [(scheme, tuple(sweeping.search.tried(scheme))) for scheme in sweeping.sweep.schemes]
    metric = metric_of([one for _, tried in found for one in tried])
    if metric and metric.key == "test_loss":
        metric = replace(metric, title="Loss")  # of validation samples, which are no test
    return [
        Tuned(scheme, tried, sweeping.sweep.axes, metric, sweeping.sweep.tune_seeds)
        for scheme, tried in found
    ]


def tested(sweeping: Sweeping) -> list[Result]:
    """What the best settings reached on the test set."""
    entries: list[StartedRun] = [
        entry for scheme in sweeping.sweep.schemes for entry in sweeping.tests(scheme)
    ]
    return results(entries)


def said(found: Sequence[Tuned]) -> list[str]:
    """What was chosen and what is to be doubted, in sentences."""
    chosen = [one for one in found if one.chosen]
    by = f" by {chosen[0].metric.called}" if chosen and chosen[0].metric else ""
    best_of = "; ".join(
        f"{one.scheme} {called(one.chosen.trial.point)}" for one in chosen if one.chosen
    )
    sentences = [f"Chosen on validation samples{by}, {chosen[0].by}: {best_of}."] if chosen else []
    sentences += _at_one_setting(found)
    level = [f"{one.level} more of {one.scheme}" for one in found if one.level]
    if level:
        sentences.append(
            f"As good on validation samples: {', '.join(level)}. The first was taken; more "
            f"validation samples, or more seeds to tune by, would tell."
        )
    edges = [edge for one in found for edge in one.edges()]
    if edges:
        sentences.append(f"At an edge: {'; '.join(edges)}. Try values beyond and sweep again.")
    failed = [one.scheme for one in found if one.tried and not one.chosen]
    if failed:
        sentences.append(
            f"No settings tried of {', '.join(failed)} trained to the end: use others."
        )
    return sentences


def spent(found: Sequence[Result]) -> list[str]:
    """What private runs did not count."""
    known = [summary.keys() for result in found for summary in result.summaries]
    if not any({"epsilon", "epsilon_local"} & keys for keys in known):
        return []
    return [
        "Each ε is of one run: every other run of this sweep is another release about the same "
        "clients, and what they cost adds up."
    ]


def lost(sweeping: Sweeping) -> list[str]:
    """Which tests diverged with the settings that were chosen."""
    found = []
    for scheme in sweeping.sweep.schemes:
        entries = sweeping.tests(scheme)
        seeds = [entry.seed for entry in entries if (o := outcome(entry.folder)) and o.diverged]
        if seeds:
            found.append(
                f"{scheme} diverged in {len(seeds)} of {len(entries)} seeds of the test "
                f"({', '.join(map(str, seeds))}), which are left out of its mean: its best "
                f"settings on validation samples are not safe ones."
            )
    return found


def _at_one_setting(found: Sequence[Tuned]) -> list[str]:
    """How partial and periodic averaging compare where both have the same settings."""
    known = {one.scheme: one for one in found}
    if not {"periodic", "partial"} <= known.keys() or len(known["partial"].axes) != 1:
        return []
    partial, periodic = known["partial"], known["periodic"]
    metric, axis = partial.metric, partial.axes[0]
    ours, theirs = dict(partial.curve(axis)), dict(periodic.curve(axis))
    both = [value for value in ours if value in theirs]
    if metric is None or len(both) < 2:
        return []
    gaps = {value: (ours[value] - theirs[value]) * metric.scale for value in both}
    low, high = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
    least, most = (f"{gaps[value]:+{metric.form}}".replace("-", "−") for value in (low, high))
    if least == most:
        return []
    return [
        f"At one common {axis.key} partial − periodic would have been anything from {least} (at "
        f"{low:g}) to {most} (at {high:g})."
    ]
