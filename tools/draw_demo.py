"""Draw the picture of the README, docs/images/demo.svg, from a run of the demo.

    partavg compare --out runs/picture && python tools/draw_demo.py runs/picture

It takes the metrics of the first seed, which are not committed; the demo makes the same ones
wherever its versions are those of constraints.txt.
"""

import json
import sys
from pathlib import Path
from typing import Any

from picture import IMAGES, WIDTH, chart, legend, picture

CHARTS = {
    "discrepancy": ("How far the workers' models are apart", 1),
    "accuracy": ("Accuracy of the averaged model, %", 100),
}
SCHEMES = {"periodic": 0, "partial": 1, "synchronous": 2}


def rows(folder: Path, scheme: str) -> list[dict[str, Any]]:
    """The metrics of the first seed."""
    with min(folder.glob(f"{scheme}-seed*/metrics.jsonl")).open() as file:
        return [json.loads(line) for line in file]


def draw(folder: Path) -> str:
    """Both metrics of all schemes, against the step."""
    found = {color: rows(folder, scheme) for scheme, color in SCHEMES.items()}
    parts = []
    for place, (metric, (title, scale)) in enumerate(CHARTS.items()):
        lines = [
            (color, [(row["step"], scale * row[metric]) for row in measured if metric in row])
            for color, measured in found.items()
        ]
        parts += chart(place, title, "step", lines)
    labels = {color: scheme for scheme, color in SCHEMES.items()}
    return picture(2 * WIDTH - 20, 364, parts + legend(labels, (56, 186, 316)))


def main() -> None:
    """Write the picture."""
    (IMAGES / "demo.svg").write_text(draw(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
