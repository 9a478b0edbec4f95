"""Curves of runs: the mean of seeds, stretches of them, and fewer points that look the same."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partavg.report.runs import Numbers, Series, ShownRun


class Curve(NamedTuple):
    """Points in order of x."""

    x: Numbers
    y: Numbers

    def within(self, low: float, high: float) -> "Curve":
        """The points from one x to another."""
        kept = (self.x >= low) & (self.x <= high)
        return Curve(self.x[kept], self.y[kept])

    def scaled(self, x: float, y: float) -> "Curve":
        """The same in other units."""
        return Curve(self.x * x, self.y * y)


def against_steps(run: ShownRun, metric: str) -> Curve:
    """A metric at each step at which it was measured."""
    return Curve(*run.series.get(metric, _NOTHING))


def against(run: ShownRun, metric: str, other: str) -> Curve:
    """A metric against another one that was measured after the same steps."""
    series, across = run.series.get(metric), run.series.get(other)
    if series is None or across is None:
        return Curve(*_NOTHING)
    _, ours, theirs = np.intersect1d(series.steps, across.steps, return_indices=True)
    return Curve(across.values[theirs], series.values[ours])


def against_seconds(run: ShownRun, metric: str) -> Curve:
    """A metric against the time of a finished run, of which every step takes the same share."""
    seconds = (run.summary or {}).get("seconds")
    curve = against_steps(run, metric)
    if not isinstance(seconds, int | float) or not run.step:
        return Curve(*_NOTHING)
    return curve.scaled(seconds / run.step, 1)


def mean(curves: Sequence[Curve]) -> Curve:
    """The mean of curves point by point; of unequal length, over those that have a point there.

    >>> mean([Curve(np.array([1.0, 2.0]), np.array([3.0, 4.0])),
    ...       Curve(np.array([1.0]), np.array([5.0]))]).y.tolist()
    [4.0, 4.0]
    """
    if len({len(curve.x) for curve in curves}) == 1:
        return Curve(*np.mean(curves, axis=0))
    x, places = np.unique(np.concatenate([curve.x for curve in curves]), return_inverse=True)
    sums = np.bincount(places, np.concatenate([curve.y for curve in curves]), len(x))
    return Curve(x, sums / np.bincount(places, minlength=len(x)))


def thinned(curve: Curve, most: int) -> Curve:
    """About so many points at most: the ends, and the lowest and highest of each stretch."""
    count = len(curve.x)
    if count <= most:
        return curve
    width = -(-2 * count // max(2, most - 2))
    stretches = np.pad(curve.y, (0, -count % width), mode="edge").reshape(-1, width)
    starts = width * np.arange(len(stretches))
    extremes = (starts + stretches.argmin(1), starts + stretches.argmax(1))
    kept = np.unique(np.concatenate([*extremes, [0, count - 1]]).clip(max=count - 1))
    return Curve(curve.x[kept], curve.y[kept])


_NOTHING = Series(np.empty(0), np.empty(0))
