"""Sensitivity curves: what each scheme reaches against a setting that was swept."""

from collections.abc import Sequence
from html import escape

import numpy as np

from partavg.report.chart import draw, keys
from partavg.report.charts import Chart, Line
from partavg.report.curves import Curve
from partavg.report.pareto import named
from partavg.sentences import opening
from partavg.sweeps.findings import Tuned
from partavg.sweeps.space import Axis


def sensitivity(found: Sequence[Tuned]) -> list[str]:
    """A figure for every setting that is a number; none where nothing trained."""
    if not found or found[0].metric is None:
        return []
    return [drawn for axis in found[0].axes if (drawn := _figure(found, axis))]


def _figure(found: Sequence[Tuned], axis: Axis) -> str:
    metric = found[0].metric
    assert metric
    lines = []
    for place, one in enumerate(found):
        points = np.array(one.curve(axis), dtype=np.float64).reshape(-1, 2)
        if len(points) > 1:
            lines.append(Line(place, place, Curve(points[:, 0], points[:, 1] * metric.scale)))
    if not lines:
        return ""
    positive = all(bool((line.curve.x > 0).all()) for line in lines)
    ends = [float(end) for line in lines for end in (line.curve.x.min(), line.curve.x.max())]
    log = positive and max(ends) >= 4 * min(ends)
    title = f"{opening(metric.called)} on validation samples against {axis.key}"
    best = "the best over all other settings, " if len(found[0].axes) > 1 else ""
    note = f"{named(metric)}, {best}{found[0].by}; settings that diverged are left out"
    label = f"{axis.key} (logarithmic)" if log else axis.key
    chart = Chart(f"sweep-{axis.key}", title, "", label, metric.called, lines, log_x=log)
    legend = keys((line.group, found[line.group].scheme) for line in lines)
    return (
        f'<figure id="chart-sweep-{escape(axis.key)}" class="sweep"><figcaption>'
        f'<h3>{escape(title)}</h3><span class="soft">{escape(note)}</span>'
        f'{legend}</figcaption><div class="plot">{draw(chart)}</div></figure>'
    )
