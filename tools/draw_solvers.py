"""Draw the study of solvers, docs/images/solvers.svg of docs/solvers.md.

    partavg compare study/solvers --seeds 3 --out runs/solvers
    python tools/draw_solvers.py runs/solvers

The runs are not committed.
"""

import json
import sys
from html import escape
from pathlib import Path
from statistics import mean, stdev

from picture import IMAGES, picture

from partavg.report.palette import LIGHT

SCHEMES = {"periodic": LIGHT.lines[0], "partial": LIGHT.lines[1]}
LEFT, TOP, ROW, SCALE = 150, 40, 46, 7.0  # SCALE pixels for each percent


def accuracies(folder: Path, scheme: str) -> list[float]:
    """In percent, one for each seed."""
    paths = sorted(folder.glob(f"{scheme}-seed*/summary.json"))
    return [100 * json.loads(path.read_text())["accuracy"] for path in paths]


def bar(top: float, color: str, label: str, values: list[float]) -> str:
    """A bar as long as the mean, with a stroke of the deviation to both sides of its end."""
    middle, half = SCALE * mean(values), SCALE * stdev(values)
    said = escape(f"{label}: {mean(values):.2f} ± {stdev(values):.2f}")
    return (
        f'<rect x="{LEFT}" y="{top}" width="{middle:.1f}" height="15" fill="{color}">'
        f"<title>{said}</title></rect>"
        f'<path d="M{LEFT + middle - half:.1f} {top + 7.5}h{2 * half:.1f}" '
        f'stroke="#24292f" stroke-width="2"/>'
    )


def draw(folder: Path) -> str:
    """Two bars for each solver."""
    names = {path.name.rpartition("-seed")[0] for path in folder.glob("*-seed*")}
    solvers = sorted({name.rpartition("-")[0] for name in names}, key=lambda n: ("uneven" in n, n))
    height = TOP + ROW * len(solvers) + 30
    drawn = [f'<text class="head" x="{LEFT}" y="22">Accuracy of the averaged model, %</text>']
    for percent in range(0, 101, 20):
        x = LEFT + SCALE * percent
        drawn.append(f'<path class="grid" d="M{x} {TOP}V{height - 30}"/>')
        drawn.append(f'<text x="{x}" y="{height - 12}" text-anchor="middle">{percent}</text>')
    for place, solver in enumerate(solvers):
        y = TOP + ROW * place + 6
        drawn.append(
            f'<text x="{LEFT - 10}" y="{y + 20}" text-anchor="end">{escape(solver)}</text>'
        )
        for offset, (scheme, color) in enumerate(SCHEMES.items()):
            values = accuracies(folder, f"{solver}-{scheme}")
            drawn.append(bar(y + 17 * offset, color, f"{solver} {scheme}", values))
    for offset, (scheme, color) in enumerate(SCHEMES.items()):
        x = 500 + 120 * offset
        drawn.append(f'<rect x="{x}" y="10" width="14" height="14" fill="{color}"/>')
        drawn.append(f'<text x="{x + 20}" y="22">{scheme}</text>')
    return picture(880, height, drawn)


def main() -> None:
    """Write the picture."""
    (IMAGES / "solvers.svg").write_text(draw(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
