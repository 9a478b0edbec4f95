"""Draw the study of language models, docs/images/language-models.svg of docs/language-models.md.

    python tools/draw_language_models.py

Left the test loss against what a worker sent, by the interval; right the lead over periodic
averaging by the number of workers. Strokes are 95 % intervals of three seeds.
"""

import sys
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from picture import IMAGES, WIDTH, Points, chart, legend, picture

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from lm_methods import BASE, OTHERS, Task  # noqa: E402
from lm_rows import T_95, Rows, difference  # noqa: E402

COLORS = {0: "periodic", 1: "partial", 3: "DiLoCo", 4: "partial, outer Nesterov"}
Stroke = tuple[float, float, float]
"""x, y, and half the interval."""


def against_traffic(rows: Rows, name: str) -> Iterator[Stroke]:
    """Losses with 8 workers, from the longest interval to the shortest."""
    for interval in (256, 96, 32):
        judged = list(rows.judged(Task(interval=interval), name).values())
        losses = [row["test"] for row in judged]
        half = T_95[len(losses)] * stdev(losses) / sqrt(len(losses))
        yield judged[0]["bytes"] / 1e6, mean(losses), half


def against_workers(rows: Rows, name: str) -> Iterator[Stroke]:
    """Differences from periodic averaging with interval 32."""
    for task in sorted((BASE, *OTHERS), key=lambda task: task.workers):
        if (task.interval, task.shares) == (32, "even"):
            found = difference(rows.judged(task, name), rows.judged(task, "periodic"))
            assert found is not None
            yield task.workers, found[0], found[1] or 0.0


def lines(color: int, strokes: list[Stroke]) -> Iterator[tuple[int, Points]]:
    """A line through the means, and a stroke for each interval."""
    yield color, [(x, y) for x, y, _ in strokes]
    for x, y, half in strokes:
        beside = x * (1 + 0.01 * (color - 2))  # not on top of each other
        yield color, [(beside, y - half), (beside, y + half)]


def draw(rows: Rows) -> str:
    """Both charts."""
    left = [line for color, name in COLORS.items()
            for line in lines(color, list(against_traffic(rows, name)))]  # fmt: skip
    right = [line for color, name in COLORS.items() if name != "periodic"
             for line in lines(color, list(against_workers(rows, name)))]  # fmt: skip
    parts = [
        *chart(0, "Test loss, nats a byte, 8 workers", "MB sent a worker", left, log_x=True),
        *chart(1, "Against periodic averaging, interval 32", "workers", right),
        *legend(COLORS, (56, 176, 286, 396)),
    ]
    return picture(2 * WIDTH, 366, parts)


if __name__ == "__main__":
    (IMAGES / "language-models.svg").write_text(draw(Rows(ROOT / "results/lm")))
