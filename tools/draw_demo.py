"""Draw the picture of the README from a comparison.

partavg compare --out runs/picture && python tools/draw_demo.py runs/picture
"""

import json
import sys
from pathlib import Path

from partavg.report.chart import Line, chart

TARGET = Path(__file__).parent.parent / "docs/images/demo.svg"
STYLE = """
svg { font-family: system-ui, sans-serif; } text { fill: #6e7781; font-size: 13px; }
.grid { stroke: #8c959f; stroke-opacity: .35; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.c0 { stroke: #d4670f; } .c1 { stroke: #1f7ae0; } .c2 { stroke: #8c959f; }
.head { font-size: 16px; font-weight: 600; }
"""
CHARTS = {
    "discrepancy": ("How far the workers' models are apart", 1),
    "accuracy": ("Accuracy of the averaged model, %", 100),
}
SCHEMES = {"periodic": "c0", "partial": "c1", "synchronous": "c2"}


def rows(folder: Path, scheme: str) -> list[dict]:
    """The metrics of the first seed."""
    with sorted(folder.glob(f"{scheme}-seed*/metrics.jsonl"))[0].open() as file:
        return [json.loads(line) for line in file]


def main() -> None:
    """Write the picture."""
    folder = Path(sys.argv[1])
    parts = []
    for place, (metric, (title, scale)) in enumerate(CHARTS.items()):
        lines = [
            Line(
                scheme,
                f"line {style}",
                [(r["step"], scale * r[metric]) for r in rows(folder, scheme) if metric in r],
            )
            for scheme, style in SCHEMES.items()
        ]
        left = 660 * place
        parts.append(f'<text class="head" x="{left + 56}" y="20">{title}</text>')
        parts.append(f'<svg x="{left}" y="32" width="640" height="300">')
        parts.append(chart(title, "step", lines) + "</svg>")
    for place, (scheme, style) in enumerate(SCHEMES.items()):
        left = 56 + 130 * place
        parts.append(f'<path class="line {style}" d="M{left} 352h24"/>')
        parts.append(f'<text x="{left + 30}" y="356">{scheme}</text>')
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1300 364">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    main()
