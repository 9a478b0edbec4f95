"""Draw docs/images/between.svg of docs/solvers.md: from periodic to partial averaging.

    partavg compare study/between --seeds 5 --out runs/between
    python tools/draw_between.py runs/between

It also prints the table of the page. The runs are not committed.
"""

import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from picture import IMAGES, WIDTH, Points, chart, picture

from partavg.config_toml import parse
from partavg.recipes.files import read

CHARTS = {
    "accuracy": ("Accuracy of the averaged model, %", 100),
    "peak_discrepancy": ("Peak discrepancy between the models", 1),
}
Summaries = dict[int, list[dict[str, Any]]]
"""The summaries of runs by their number of parts."""


def summaries(folder: Path) -> Summaries:
    """Those of all runs in a folder."""
    found: Summaries = {}
    for path in sorted(folder.glob("*/summary.json")):
        parts = parse(read(path.parent / "config.toml")).averaging.parts
        assert parts is not None
        found.setdefault(parts, []).append(json.loads(path.read_text()))
    return dict(sorted(found.items()))


def draw(found: Summaries) -> str:
    """Means over the seeds as a line, their deviations as strokes across it."""
    drawn = []
    for place, (key, (title, scale)) in enumerate(CHARTS.items()):
        values = {parts: [scale * run[key] for run in runs] for parts, runs in found.items()}
        lines: list[tuple[int, Points]] = [(1, [(p, mean(v)) for p, v in values.items()])]
        for parts, v in values.items():
            lines.append((2, [(parts, mean(v) - stdev(v)), (parts, mean(v) + stdev(v))]))
        drawn += chart(place, title, "parts P", lines)
    return picture(2 * WIDTH - 20, 340, drawn)


def table(found: Summaries) -> str:
    """The rows of the page's table."""
    lines = []
    for parts, runs in found.items():
        accuracy = [100 * run["accuracy"] for run in runs]
        peak = [run["peak_discrepancy"] for run in runs]
        lines.append(
            f"| {parts} | {mean(accuracy):.2f} ± {stdev(accuracy):.2f} | {mean(peak):.2f} ± "
            f"{stdev(peak):.2f} | {runs[0]['messages']} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Write the picture, print the table."""
    found = summaries(Path(sys.argv[1]))
    (IMAGES / "between.svg").write_text(draw(found))
    print(table(found))


if __name__ == "__main__":
    main()
