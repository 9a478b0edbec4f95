"""What is known of a tuning run, read from its folder: nothing is kept elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from partavg.folder import RunFolder
from partavg.metrics.metric import Metric, Row
from partavg.metrics.table import main_metric


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far a run is, and what was measured on the way."""

    step: int
    row: Row
    """The newest value of each metric, or the summary of a run that is finished."""
    diverged: bool = False
    metrics: tuple[Metric, ...] = ()

    @property
    def metric(self) -> Metric | None:
        """What it is judged by."""
        return main_metric([self.row], self.metrics) if self.row else None

    @property
    def value(self) -> float | None:
        """What it reached; None for a run that diverged."""
        if self.diverged or self.metric is None:
            return None
        return float(self.row[self.metric.key])


def outcome(folder: RunFolder, until: int | None = None) -> Outcome | None:
    """What became of a run up to a step, or to its end; None if it is not there yet."""
    if folder.why_diverged():
        return Outcome(0, {}, diverged=True)
    if until is None or (folder.finished and folder.summary()["steps"] <= until):
        if not folder.finished:
            return None
        summary = folder.summary()
        return Outcome(summary["steps"], summary, metrics=tuple(folder.metrics()))
    known: Row = {}
    if folder.exists and folder.metrics_path.exists():
        for row in folder.rows():
            if row["step"] <= until:
                known.update(row)
    if known.get("step") != until:
        return None
    return Outcome(until, known, metrics=tuple(folder.metrics()))


def together(found: Sequence[Outcome | None]) -> Outcome | None:
    """What became of some seeds: the mean of all numbers; diverged if one is, None if one lacks."""
    known = [one for one in found if one]
    if any(one.diverged for one in known):
        return Outcome(min(one.step for one in known), {}, diverged=True)
    if len(known) < len(found):
        return None
    if len(known) == 1:
        return known[0]
    first = known[0]
    keys = [key for key, value in first.row.items() if type(value) in (int, float)]
    means = {
        key: fmean(one.row[key] for one in known)
        for key in keys
        if all(type(one.row.get(key)) in (int, float) for one in known)
    }
    return Outcome(min(one.step for one in known), means, metrics=first.metrics)


def better(metric: Metric, one: float | None, other: float | None) -> bool:
    """Whether one value is better than another; every value is better than none."""
    if one is None or other is None:
        return one is not None
    return one > other if metric.better == "higher" else one < other
