"""Line charts as SVG text, drawn by hand so that a page needs nothing but a browser.

What a browser shows at first, prints, and shows without JavaScript; page.js draws it again, wider
or narrower, with all points.
"""

from collections.abc import Iterable
from html import escape

from partavg.report.axes import Axes
from partavg.report.charts import Chart, Line
from partavg.report.curves import Curve, thinned
from partavg.report.palette import DASHES, LIGHT

_POINTS, _MOST, _FEWEST = 20_000, 600, 8  # of all lines, and of one


def draw(chart: Chart) -> str:
    """An SVG picture of a chart, with axes and a description for those who cannot see it."""
    most = min(_MOST, max(_FEWEST, _POINTS // len(chart.lines)))
    drawn = [(line, thinned(line.curve, most)) for line in chart.lines]
    x, y = (
        (min(float(c[i].min()) for _, c in drawn), max(float(c[i].max()) for _, c in drawn))
        for i in (0, 1)
    )
    axes = Axes(x, y, chart.x_label, log_x=chart.log_x)
    parts = axes.opened(chart.title)
    for line, curve in sorted(drawn, key=lambda pair: pair[0].run is None):
        kind = (" seed" if line.seed else "") + (" dot" if len(curve.x) == 1 else "")
        placed = Curve(axes.across(curve.x), axes.down(curve.y))
        parts.append(f'<path class="{look(line, chart)}{kind}" d="{path(placed)}"/>')
    return "\n".join([*parts, "</svg>"])


def look(line: Line, chart: Chart) -> str:
    """The CSS classes of a line; where a chart has two kinds of lines, dashes tell them apart."""
    dashes = int(line.other) if chart.second else line.group % len(DASHES)
    return f"line c{line.group % len(LIGHT.lines)} d{dashes}"


def swatch(group: int) -> str:
    """A group's line in the legend."""
    return f'<path class="line c{group % len(LIGHT.lines)} d{group % len(DASHES)}" d="M1 4H27"/>'


def _dot(group: int) -> str:
    return f'<path class="line c{group % len(LIGHT.lines)} dot" d="M5 4h.01"/>'


def keys(named: Iterable[tuple[int, str]], *, dots: bool = False) -> str:
    """The legend of a picture that stands alone: groups by their numbers and names."""
    mark, width = (_dot, 10) if dots else (swatch, 28)
    items = (
        f'<li><svg viewBox="0 0 {width} 8" width="{width}" aria-hidden="true">'
        f"{mark(group)}</svg> "
        f"<bdi>{escape(name)}</bdi></li>"
        for group, name in named
    )
    return f'<ul class="keys">{"".join(items)}</ul>'


def path(curve: Curve) -> str:
    """The points of a curve as SVG writes them; one alone is a dot."""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(curve.x, curve.y, strict=True))
    return f"M{points}" + ("h.01" if len(curve.x) == 1 else "")
