"""Line charts as SVG text, drawn by hand so that a report needs nothing but a browser."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

Point = tuple[float, float]

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 40
_MOST_POINTS = 1200


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: its label, the CSS class that colors it, its points in order of x."""

    label: str
    style: str
    points: Sequence[Point]


def chart(title: str, x_label: str, lines: Sequence[Line]) -> str:
    """An SVG picture of the lines, with axes and a description for those who cannot see it."""
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    x_ticks = ticks(min(x for x, _ in points), max(x for x, _ in points))
    y_ticks = ticks(min(y for _, y in points), max(y for _, y in points))

    def place(x: float, y: float) -> Point:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for tick in y_ticks:
        x, y = place(x_ticks[0], tick)
        parts.append(
            f'<line class="grid" x1="{x}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{x - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        x, y = place(tick, y_ticks[0])
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{tick:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>'
    )
    for line in lines:
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in thinned(line.points))
        parts.append(
            f'<polyline class="{line.style}" points="{path}">'
            f"<title>{escape(line.label)}</title></polyline>"
        )
    return "\n".join([*parts, "</svg>"])


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


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most about a thousand points: the lowest and the highest of each stretch."""
    if len(points) <= _MOST_POINTS:
        return points
    width = ceil(2 * len(points) / _MOST_POINTS)
    kept: list[Point] = []
    for start in range(0, len(points), width):
        stretch = points[start : start + width]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept
