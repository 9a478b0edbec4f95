"""What the page on the paper's tables says of rates is what was measured."""

import csv
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES = {
    "periodic": "| periodic |",
    "partial-permute110": "| partial, models handed over every 110 steps |",
    "partial-listen110": "| partial, `listen`, redrawn every 110 steps |",
    "partial-listen11": "| partial, `listen`, redrawn every 11 steps |",
}


def test_the_page_says_what_was_measured() -> None:
    page = (ROOT / "docs/reproduce.md").read_text()
    text = (ROOT / "results/noniid/runs.csv").read_text()
    runs = list(csv.DictReader(text.splitlines()))
    for method, line in LINES.items():
        own = [run for run in runs if run["method"] == method]
        tuned = {run["lr"]: run["accuracy"] for run in own if run["judged_on"] == "validation"}
        assert len(tuned) == 3
        rate = max(tuned, key=lambda lr: float(tuned[lr]))
        judged = [run for run in own if run["group"] == "judging"]
        assert all(run["lr"] == rate for run in judged)
        cells = ", ".join(run["accuracy"] for run in judged)
        assert f"{line} {rate} | {tuned[rate]} | {cells}" in page, method
    even = [run["accuracy"] for run in runs if run["group"].startswith("permuted")]
    assert f"the recipe's rate | {' | '.join(even)} |" in page
