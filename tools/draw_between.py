"""Draw what lies between periodic and partial averaging, for docs/solvers.md.

partavg compare study/between --seeds 5 --out runs/between && python tools/draw_between.py \
runs/between
"""

import json
import sys
from pathlib import Path
from statistics import mean, stdev

from draw_demo import STYLE

from partavg.config_toml import parse
from partavg.recipes.files import read
from partavg.report.chart import Line, chart

TARGET = Path(__file__).parent.parent / "docs/images/between.svg"
CHARTS = {
    "accuracy": ("Accuracy of the averaged model, %", 100),
    "peak_discrepancy": ("Peak discrepancy between the models", 1),
}


def summaries(folder: Path) -> dict[int, list[dict]]:
    """The summaries of all runs by their number of parts."""
    found: dict[int, list[dict]] = {}
    for path in sorted(folder.glob("*/summary.json")):
        parts = parse(read(path.parent / "config.toml")).averaging.parts
        assert parts is not None
        found.setdefault(parts, []).append(json.loads(path.read_text()))
    return dict(sorted(found.items()))


def main() -> None:
    """Write the picture."""
    found = summaries(Path(sys.argv[1]))
    drawn = []
    for place, (key, (title, scale)) in enumerate(CHARTS.items()):
        values = {parts: [scale * s[key] for s in runs] for parts, runs in found.items()}
        lines = [Line("mean", "line c1", [(p, mean(v)) for p, v in values.items()])]
        for parts, v in values.items():
            ends = [(parts, mean(v) - stdev(v)), (parts, mean(v) + stdev(v))]
            lines.append(Line(f"{parts} parts, mean ± deviation", "line c2", ends))
        left = 660 * place
        drawn.append(f'<text class="head" x="{left + 56}" y="20">{title}</text>')
        drawn.append(f'<svg x="{left}" y="32" width="640" height="300">')
        drawn.append(chart(title, "parts P", lines) + "</svg>")
    TARGET.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1300 340">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(drawn) + "\n</svg>\n"
    )
    for parts, runs in found.items():
        accuracy = [100 * s["accuracy"] for s in runs]
        peak = [s["peak_discrepancy"] for s in runs]
        print(
            f"| {parts} | {mean(accuracy):.2f} ± {stdev(accuracy):.2f} | {mean(peak):.2f} ± "
            f"{stdev(peak):.2f} | {runs[0]['messages']} |"
        )


if __name__ == "__main__":
    main()
