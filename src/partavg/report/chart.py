"""Line charts as SVG text, drawn by hand so that a page needs nothing but a browser.

What a browser shows at first, prints, and shows without JavaScript; page.js draws it again, wider
or narrower, with all points.
"""

from html import escape
from math import ceil, floor, log10

import numpy as np

from partavg.report.charts import Chart, Line
from partavg.report.curves import Curve, thinned
from partavg.report.palette import DASHES, LIGHT

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 22, 12, 40
_POINTS, _MOST, _FEWEST = 20_000, 600, 8  # of all lines, and of one


def draw(chart: Chart) -> str:
    """An SVG picture of a chart, with axes and a description for those who cannot see it."""
    most = min(_MOST, max(_FEWEST, _POINTS // len(chart.lines)))
    drawn = [(line, thinned(line.curve, most)) for line in chart.lines]
    x_range = min(c.x.min() for _, c in drawn), max(c.x.max() for _, c in drawn)
    x_ticks = decades(*x_range) if chart.log_x else ticks(*x_range)
    y_ticks = ticks(min(c.y.min() for _, c in drawn), max(c.y.max() for _, c in drawn))
    on_axis = np.log10 if chart.log_x else np.asarray
    x_first, x_last = float(on_axis(x_ticks[0])), float(on_axis(x_ticks[-1]))
    across = (_WIDTH - _LEFT - _RIGHT) / (x_last - x_first)
    up = (_HEIGHT - _TOP - _BOTTOM) / (y_ticks[-1] - y_ticks[0])

    def place(curve: Curve) -> Curve:
        moved = Curve(on_axis(curve.x) - x_first, curve.y - y_ticks[0]).scaled(across, -up)
        return Curve(moved.x + _LEFT, moved.y + _HEIGHT - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
    ]
    for tick in y_ticks:
        y = _HEIGHT - _BOTTOM - up * (tick - y_ticks[0])
        parts.append(
            f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for tick in x_ticks:
        x = _LEFT + across * (on_axis(tick) - x_first)
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(chart.x_label)}</text>'
    )
    for line, curve in sorted(drawn, key=lambda pair: pair[0].run is None):
        kind = (" seed" if line.seed else "") + (" dot" if len(curve.x) == 1 else "")
        parts.append(f'<path class="{look(line, chart)}{kind}" d="{path(place(curve))}"/>')
    return "\n".join([*parts, "</svg>"])


def look(line: Line, chart: Chart) -> str:
    """The CSS classes of a line; where a chart has two kinds of lines, dashes tell them apart."""
    dashes = int(line.other) if chart.second else line.group % len(DASHES)
    return f"line c{line.group % len(LIGHT.lines)} d{dashes}"


def swatch(group: int) -> str:
    """A group's line in the legend."""
    return f'<path class="line c{group % len(LIGHT.lines)} d{group % len(DASHES)}" d="M1 4H27"/>'


def path(curve: Curve) -> str:
    """The points of a curve as SVG writes them; one alone is a dot."""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(curve.x, curve.y, strict=True))
    return f"M{points}" + ("h.01" if len(curve.x) == 1 else "")


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
