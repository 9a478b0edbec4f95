"""The discrepancy of each part over time, as a map of colors."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from partavg.report import palette
from partavg.report.runs import Group, Numbers, Series

_COLUMNS, _ROWS = 160, 64
_LEVELS = 24
_PARTS = "discrepancy_parts"
_NOTHING = 1e-9  # is rounding error
_CELLS = 60_000  # of all maps of a page


class HeatMap(NamedTuple):
    """Values [parts, stretches of steps] of a group; 0 is dark, the highest is light."""

    group: int
    parts: int
    steps: tuple[int, int]
    values: Numbers

    @property
    def highest(self) -> float:
        """The highest value."""
        return float(np.nanmax(self.values))


class HeatMaps(NamedTuple):
    """As many maps as a page has room for."""

    drawn: list[HeatMap]
    left_out: int


def heat_maps(groups: Sequence[Group]) -> HeatMaps:
    """A map for each group whose parts were measured and ever differed: the mean over seeds."""
    kept: list[HeatMap] = []
    for place, group in enumerate(groups):
        series = [run.series[_PARTS] for run in group.runs if _PARTS in run.series]
        one = _heat_map(place, series) if series else None
        if one and one.highest > _NOTHING:
            kept.append(one)
    sizes = np.cumsum([one.values.size for one in kept])
    fitting = int((sizes <= _CELLS).sum())
    return HeatMaps(kept[:fitting], len(kept) - fitting)


def _heat_map(group: int, series: Sequence[Series]) -> HeatMap:
    parts = max(one.values.shape[1] for one in series)
    low, high = min(one.steps[0] for one in series), max(one.steps[-1] for one in series)
    count = max(len(one.steps) for one in series)
    columns = -(-count // -(-count // _COLUMNS))  # stretches of equal length
    rows = min(_ROWS, parts)
    sums, counts = np.zeros((2, rows, columns))
    for one in series:
        across = ((one.steps - low) / (high - low + 1) * columns).astype(int)
        for part in range(one.values.shape[1]):
            known = ~np.isnan(one.values[:, part])
            row = part * rows // parts
            np.add.at(sums[row], across[known], one.values[known, part])
            np.add.at(counts[row], across[known], 1)
    filled = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return HeatMap(group, parts, (int(low), int(high)), filled)


def draw(one: HeatMap, label: str) -> str:
    """An SVG picture with one unit per cell, a path per color; the page stretches it."""
    rows, columns = one.values.shape
    levels = np.nan_to_num(one.values / one.highest * (_LEVELS - 1), nan=-1).round().astype(int)
    paths: dict[int, list[str]] = {}
    for row in range(rows):
        start = 0
        for column in range(1, columns + 1):
            if column == columns or levels[row, column] != levels[row, start]:
                cell = f"M{start} {row}h{column - start}v1h{start - column}z"
                paths.setdefault(int(levels[row, start]), []).append(cell)
                start = column
    drawn = "".join(
        f'<path class="h{level}" d="{"".join(cells)}"/>'
        for level, cells in sorted(paths.items())
        if level >= 0
    )
    return (
        f'<svg viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" role="img" '
        f'shape-rendering="crispEdges" aria-label="{label}">{drawn}</svg>'
    )


def section(groups: Sequence[Group], maps: HeatMaps) -> list[str]:
    """The maps of a page, with their scale."""
    if not maps.drawn:
        return []
    more = f"{maps.left_out} more schemes: report fewer at a time to see their maps."
    bar = "".join(
        f'<rect class="h{level}" x="{level}" width="1" height="1"/>' for level in range(_LEVELS)
    )
    return [
        "<h2>Discrepancy of each part</h2>",
        f'<p class="scale soft">0 <svg viewBox="0 0 {_LEVELS} 1" aria-hidden="true" '
        f'preserveAspectRatio="none" shape-rendering="crispEdges">{bar}</svg> the highest of '
        "each map; a part is a row, time goes from left to right.</p>",
        '<div class="charts">',
        *(_figure(number, groups[m.group], m) for number, m in enumerate(maps.drawn)),
        "</div>",
        f'<p class="soft">{more}</p>' if maps.left_out else "",
    ]


def _figure(number: int, group: Group, one: HeatMap) -> str:
    name, rows = escape(group.name), one.values.shape[0]
    parts = f"{one.parts} parts" if one.parts > 1 else "the whole model"
    parts += f", mean of {len(group.runs)} seeds" if len(group.runs) > 1 else ""
    label = f"{name}: discrepancy of {parts} over time, up to {one.highest:.3g}"
    first, last = one.steps
    return (
        f'<figure class="heat" data-heat="{number}"><figcaption><h3><bdi>{name}</bdi></h3>'
        f'<span class="soft">{parts}, up to {one.highest:.3g}</span></figcaption>'
        f'<div class="map rows{min(rows, 3)}">{draw(one, label)}</div>'
        f'<p class="ends soft"><span>step {first}</span><span>step {last}</span></p></figure>'
    )


def style() -> str:
    """The CSS of the colors."""
    return "".join(
        f".h{level}{{fill:{color}}}" for level, color in enumerate(palette.heat(_LEVELS))
    )
