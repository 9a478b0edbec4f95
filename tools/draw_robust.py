"""Draw what a defence is worth, docs/images/robust-periodic.svg and robust-partial.svg.

python tools/draw_robust.py results/robust/rows.csv
"""

import sys
from pathlib import Path
from statistics import mean

from picture import IMAGES, WIDTH, chart, legend, picture

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from robust_study import AGGREGATES, ATTACKS, FRACTIONS, SCHEMES, Rows, read
from robust_tables import accuracies

TITLES = {
    "sign_flip": "Sign flip, four times as far",
    "little_is_enough": "Little is enough",
    "label_flip": "Flipped labels",
}


def curve(known: Rows, scheme: str, aggregate: str, attack: str) -> list[tuple[float, float]]:
    """Accuracy against the fraction of attackers, both in %."""
    return [
        (100 * fraction, mean(accuracies(known, scheme, aggregate, attack, fraction)))
        for fraction in (0.0, *FRACTIONS)
    ]


def draw(known: Rows, scheme: str) -> str:
    """A chart for each attack, a line for each aggregate."""
    drawn = []
    for place, attack in enumerate(ATTACKS):
        lines = [
            (color, curve(known, scheme, aggregate, attack))
            for color, aggregate in enumerate(AGGREGATES)
        ]
        title = f"{TITLES[attack]}: accuracy, %"
        drawn += chart(place, title, "attackers, % of all workers", lines)
    places = [56 + 130 * color for color in range(len(AGGREGATES))]
    drawn += legend(dict(enumerate(AGGREGATES)), places)
    return picture(WIDTH * len(ATTACKS), 370, drawn)


def main() -> None:
    """Write a picture for each scheme."""
    known = read(Path(sys.argv[1]))
    for scheme in SCHEMES:
        (IMAGES / f"robust-{scheme}.svg").write_text(draw(known, scheme))


if __name__ == "__main__":
    main()
