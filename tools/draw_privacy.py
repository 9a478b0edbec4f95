"""Draw the study of privacy, docs/images/privacy.svg of docs/privacy.md.

    python tools/draw_privacy.py

Accuracy against ε, left with all clients in every cycle, right with a fifth of them, drawn by
chance. Strokes are 95 % intervals of the mean over seeds.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from picture import IMAGES, WIDTH, Points, chart, legend, picture

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from privacy_study import EPSILONS, FRACTIONS, SCHEMES, Rows, half  # noqa: E402

COLORS = {0: "periodic", 1: "partial", 4: "partial, late"}
TITLES = ("Accuracy %, all clients in every cycle", "Accuracy %, a fifth drawn for every cycle")


def lines(rows: Rows, fraction: float) -> Iterator[tuple[int, Points]]:
    """For each scheme a line through the means, and a stroke for each interval."""
    for color, scheme in COLORS.items():
        points = []
        for epsilon in filter(None, EPSILONS):
            values = [row.accuracy for row in rows.judged(fraction, epsilon, scheme).values()]
            beside = epsilon * (1 + 0.02 * (list(COLORS).index(color) - 1))  # not on top of others
            about = half(values)
            yield color, [(beside, mean(values) - about), (beside, mean(values) + about)]
            points.append((epsilon, mean(values)))
        yield color, sorted(points)


def draw(rows: Rows) -> str:
    """Both charts."""
    assert set(COLORS.values()) == set(SCHEMES)
    parts: list[str] = []
    for place, (title, fraction) in enumerate(zip(TITLES, FRACTIONS, strict=True)):
        parts += chart(place, title, "ε", list(lines(rows, fraction)), log_x=True)
    parts += legend(COLORS, (56, 176, 286))
    return picture(2 * WIDTH, 366, parts)


if __name__ == "__main__":
    (IMAGES / "privacy.svg").write_text(draw(Rows(ROOT / "results/privacy")))
