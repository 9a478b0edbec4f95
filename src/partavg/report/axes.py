"""Axes of charts: round numbers, units that a person reads, and where a value lies on the page."""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np

from partavg.report.runs import Numbers

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 22, 22, 52  # above and below room for the larger letters of a phone
_HALF_A_LETTER = 5
_SQUEEZED = 4  # times as far as another goes what leaves the other no room


class Unit(NamedTuple):
    """What numbers are shown in."""

    name: str
    size: float


_BYTES = (Unit("kB", 1e3), Unit("MB", 1e6), Unit("GB", 1e9), Unit("TB", 1e12))
_TIMES = (Unit("seconds", 1), Unit("minutes", 60), Unit("hours", 3600))


def unit_of_bytes(most: float) -> Unit:
    """The largest unit of which the largest number has one or more.

    >>> unit_of_bytes(25.3e6).name, unit_of_bytes(1.2e9).name
    ('MB', 'GB')
    """
    return _largest(_BYTES, most)


def unit_of_seconds(most: float) -> Unit:
    """Minutes from two on, hours from two on.

    >>> unit_of_seconds(100).name, unit_of_seconds(600).name, unit_of_seconds(8000).name
    ('seconds', 'minutes', 'hours')
    """
    return _largest(_TIMES, most / 2)


def _largest(units: Sequence[Unit], most: float) -> Unit:
    return next((unit for unit in reversed(units) if unit.size <= most), units[0])


def far_apart(ends: Sequence[float]) -> bool:
    """Whether what goes furthest would leave the others next to none of the width."""
    seen = [end for end in ends if end > 0]
    return bool(seen) and max(seen) > _SQUEEZED * min(seen)


class Axes:
    """The frame of a picture: x below, logarithmic or not, and y at the left."""

    def __init__(
        self, x: tuple[float, float], y: tuple[float, float], x_label: str, *, log_x: bool = False
    ) -> None:
        self._x_ticks = decades(*x) if log_x else ticks(*x)
        self._y_ticks, self._label = ticks(*y), x_label
        self._on_axis = np.log10 if log_x else np.asarray
        first, last = (float(self._on_axis(end)) for end in (self._x_ticks[0], self._x_ticks[-1]))
        self._first, self._across = first, (WIDTH - LEFT - RIGHT) / (last - first)
        self._up = (HEIGHT - TOP - BOTTOM) / (self._y_ticks[-1] - self._y_ticks[0])

    def across(self, x: Numbers | float) -> Numbers:
        """How far from the left edge of the picture values lie."""
        return np.asarray(LEFT + self._across * (self._on_axis(x) - self._first))

    def down(self, y: Numbers | float) -> Numbers:
        """How far below its upper edge."""
        return np.asarray(HEIGHT - BOTTOM - self._up * (np.asarray(y) - self._y_ticks[0]))

    def opened(self, title: str) -> list[str]:
        """The beginning of a picture as SVG: its name, lines, numbers; it is not closed yet."""
        parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
        for tick in self._y_ticks:
            y = float(self.down(tick))
            parts.append(
                f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{mark(tick)}</text>'
            )
        for tick in self._x_ticks:
            text = mark(tick)
            x = min(float(self.across(tick)), WIDTH - _HALF_A_LETTER * len(text))
            parts.append(
                f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 24}" text-anchor="middle">{text}</text>'
            )
        middle = (LEFT + WIDTH - RIGHT) / 2
        label = escape(self._label)
        return [*parts, f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{label}</text>']


def mark(tick: float) -> str:
    """A number of an axis.

    >>> mark(0.5), mark(5000), mark(1e6), mark(5e15)
    ('0.5', '5000', '1,000,000', '5e+15')
    """
    return f"{tick:,.0f}" if 1e4 <= tick < 1e8 and tick == round(tick) else f"{tick:g}"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers that enclose a range.

    >>> ticks(0, 400)
    [0.0, 100.0, 200.0, 300.0, 400.0]
    """
    if high <= low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    digits = 12 - floor(log10(step))  # relative to the step, which may be tiny
    return [round(index * step, digits) for index in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Round numbers that enclose a range of a logarithmic scale.

    >>> decades(0.6, 76)
    [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    >>> decades(0.6, 760)
    [0.1, 1.0, 10.0, 100.0, 1000.0]
    """
    units = (1,) if high / low > 1000 else (1, 2, 5)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    marks = [float(f"{unit}e{power}") for power in powers for unit in units]
    first = max(mark for mark in marks if mark <= low * 1.001)
    last = min(mark for mark in marks if mark >= high * 0.999)
    return [mark for mark in marks if first <= mark <= max(last, 2 * first)]
