"""Draw what a defence is worth, docs/images/robust.svg of docs/robust.md.

    python tools/draw_robust.py results/robust/rows.csv
"""

import sys
from html import escape
from pathlib import Path
from statistics import mean

from picture import IMAGES, WIDTH, chart, legend, picture

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from robust_study import AGGREGATES, ATTACKS, FRACTIONS, Rows, read
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


def draw(path: Path) -> str:
    """A column for each attack, periodic averaging above and partial averaging below."""
    known, drawn = read(path), []
    for place, scheme in enumerate(("periodic", "partial")):
        row = []
        for column, attack in enumerate(ATTACKS):
            title = f"{TITLES[attack]}, {scheme} averaging"
            lines = [
                (color, curve(known, scheme, aggregate, attack))
                for color, aggregate in enumerate(AGGREGATES)
            ]
            row += chart(column, title, "attackers, % of all workers", lines)
        drawn.append(f'<g transform="translate(0 {350 * place})">{"".join(row)}</g>')
    labels = {color: escape(name) for color, name in enumerate(AGGREGATES)}
    places = [56, 180, 310, 450]
    drawn.append(f'<g transform="translate(0 350)">{"".join(legend(labels, places))}</g>')
    return picture(WIDTH * len(ATTACKS), 730, drawn)


def main() -> None:
    """Write the picture."""
    (IMAGES / "robust.svg").write_text(draw(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
