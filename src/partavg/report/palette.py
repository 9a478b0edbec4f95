"""The colors and dashes of all charts: on pages, in papers, in notebooks, in pictures."""

from collections.abc import Iterable
from colorsys import hls_to_rgb
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Theme:
    """Colors that stand out from a page, light or dark."""

    text: str
    soft: str
    rule: str
    page: str
    raised: str
    accent: str
    mark: str
    lines: tuple[str, ...]
    """Of curves, in the order in which they are given out."""


LIGHT = Theme(
    text="#1b1f24", soft="#57606a", rule="#d8dee4", page="#fff", raised="#f6f8fa",
    accent="#0b62c4", mark="#fff4d6",
    lines=("#c2540a", "#0b62c4", "#57606a", "#0a7f5a", "#a0418a", "#946800", "#1c7f9c", "#a02638"),
)  # fmt: skip
DARK = Theme(
    text="#e6edf3", soft="#a3adb8", rule="#30363d", page="#0d1117", raised="#161b22",
    accent="#79b8ff", mark="#3a2f10",
    lines=("#ff9a4d", "#58a6ff", "#a3adb8", "#3fcf8e", "#e58fd0", "#e3c04d", "#6fd6ee", "#ff8fa0"),
)  # fmt: skip

STROKE = 1.8
"""The width of a curve in pixels."""

DASHES: tuple[tuple[int, ...], ...] = ((), (9, 3), (2, 4), (9, 3, 2, 3), (5, 3))
"""On and off in pixels, the first is solid; their number and that of the colors have no common
divisor, so that pairs of a color and a dash repeat late."""

SHARES = (1, 0, 3, 4, 5, 6, 7, 2)
"""The lines' colors in the order in which the pieces of a bar take them."""

_HEAT = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))


def style(root: str = ":root") -> str:
    """The CSS of both themes and of the lines, for a page or a picture that stands alone."""
    light, dark = (f"{root} {{ {variables(theme)} }}" for theme in (LIGHT, DARK))
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n{classes()}\n"


def variables(theme: Theme) -> str:
    """A theme as variables of CSS: --text and the like, --c0 and up for the lines."""
    named = {key: value for key, value in asdict(theme).items() if key != "lines"}
    named |= {f"c{place}": color for place, color in enumerate(theme.lines)}
    return " ".join(f"--{key}: {value};" for key, value in named.items())


def classes(within: str = "") -> str:
    """Lines by classes: c0 and up are colors, d1 and up dashes; p0 and up fill pieces of bars."""
    width = f"{within}.line {{ fill: none; stroke-width: {STROKE}; }}"
    strokes = [f".c{place} {{ stroke: var(--c{place}); }}" for place in range(len(LIGHT.lines))]
    dashes = [
        f".d{place} {{ stroke-dasharray: {' '.join(map(str, dash))}; }}"
        for place, dash in enumerate(DASHES)
        if dash
    ]
    fills = [f".p{place} {{ fill: var(--c{color}); }}" for place, color in enumerate(SHARES)]
    return "\n".join([width, *(within + rule for rule in (*strokes, *dashes, *fills))])


def class_color(label: int, classes: int) -> str:
    """The color of a class among so many: hues around the circle; neighbors differ in lightness."""
    lightness = 0.46 if label % 2 else 0.62
    return _hex(255 * channel for channel in hls_to_rgb(label / classes, lightness, 0.62))


def heat(levels: int) -> list[str]:
    """From dark violet over teal to light yellow: even to the eye, and in gray."""
    anchors, places = np.array(_HEAT), np.linspace(0, len(_HEAT) - 1, levels)
    channels = [np.interp(places, range(len(anchors)), anchors[:, c]) for c in range(3)]
    return [_hex(color) for color in zip(*channels, strict=True)]


def _hex(channels: Iterable[float]) -> str:
    return "#" + "".join(f"{round(value):02x}" for value in channels)
