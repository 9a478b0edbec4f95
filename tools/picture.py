"""What the pictures of the pages have in common: colors, charts of lines, the frame."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from partavg.report.chart import draw
from partavg.report.charts import Chart, Line
from partavg.report.curves import Curve
from partavg.report.palette import LIGHT

IMAGES = Path(__file__).parent.parent / "docs/images"
WIDTH = 660
"""Of a chart and the gap beside it."""

_STYLE = """
svg { font-family: system-ui, sans-serif; } text { fill: #6e7781; font-size: 17px; }
.grid { stroke: #8c959f; stroke-opacity: .35; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.head { font-size: 19px; font-weight: 600; }
"""

Points = Iterable[tuple[float, float]]


def chart(
    place: int,
    title: str,
    x_label: str,
    lines: Sequence[tuple[int, Points]],
    *,
    log_x: bool = False,
) -> list[str]:
    """A chart under its title, the first of a row or a later one; each line has a color's number.

    Lines are drawn in their order, the last on top.
    """
    drawn = []
    for color, points in lines:
        x, y = np.array(list(points), float).T
        drawn.append(Line(color, None, Curve(x, y)))
    left = WIDTH * place
    return [
        f'<text class="head" x="{left + 56}" y="20">{escape(title)}</text>',
        f'<svg x="{left}" y="32" width="640" height="300">',
        draw(Chart("", title, "", x_label, "", drawn, log_x=log_x)) + "</svg>",
    ]


def legend(labels: Mapping[int, str], places: Sequence[int]) -> list[str]:
    """What the colors mean, below the charts; `places` are where the labels begin."""
    parts = []
    for left, (color, label) in zip(places, labels.items(), strict=True):
        parts.append(f'<path class="line c{color}" d="M{left} 352h24"/>')
        parts.append(f'<text x="{left + 30}" y="356">{escape(label)}</text>')
    return parts


def picture(width: int, height: int, parts: Iterable[str], style: str = "") -> str:
    """The text of an SVG file; `style` has the last word about how lines look."""
    colors = " ".join(
        f".c{place} {{ stroke: {color}; }}" for place, color in enumerate(LIGHT.lines)
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
            f"<style>{_STYLE}{colors}\n{style}</style>",
            *parts,
            "</svg>\n",
        ]
    )
