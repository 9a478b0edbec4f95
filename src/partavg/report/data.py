"""What the scripts of a page draw from."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from partavg.report.chart import look
from partavg.report.charts import Chart
from partavg.report.curves import thinned
from partavg.report.heat import HeatMap
from partavg.report.runs import Group, Numbers

_POINTS = 300_000  # of all lines
_MOST = (4000, 3000, 2000, 1500, 1000, 700, 500, 300, 200, 100, 50, 25, 12, 8)  # of one


def as_json(groups: Sequence[Group], drawn: Sequence[Chart], maps: Sequence[HeatMap]) -> str:
    """All numbers of a page, fit to stand in it."""
    most = _allowance([len(line.curve.x) for chart in drawn for line in chart.lines])
    value = {
        "groups": [{"name": g.name, "runs": [run.name for run in g.runs]} for g in groups],
        "charts": {
            chart.key: {
                "x": chart.x_label,
                "unit": chart.unit,
                "second": chart.second,
                "logX": chart.log_x,
                "exploded": chart.exploded,
                "lines": [
                    {
                        "group": line.group,
                        "run": line.run,
                        "other": line.other,
                        "seed": line.seed,
                        "look": look(line, chart),
                        "x": _numbers(curve.x),
                        "y": _numbers(curve.y),
                    }
                    for line in chart.lines
                    for curve in [thinned(line.curve, most)]
                ],
            }
            for chart in drawn
            if not chart.once
        },
        "heat": [
            {
                "name": groups[one.group].name,
                "parts": one.parts,
                "steps": one.steps,
                "values": [_numbers(row) for row in one.values],
            }
            for one in maps
        ],
    }
    return _json(value)


def _allowance(lengths: Sequence[int]) -> int:
    """How many points a line may have, so that the page stays small."""
    fits = (most for most in _MOST if sum(min(most, length) for length in lengths) <= _POINTS)
    return next(fits, _MOST[-1])


def _numbers(values: Numbers) -> list[float | int | None]:
    """Rounded to what can be seen, whole numbers without a point."""
    return [
        None if np.isnan(value) else int(value) if value == int(value) else float(f"{value:.5g}")
        for value in values.tolist()
    ]


def _json(value: Any) -> str:
    """JSON in which nothing can end the script element that it is in."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text
