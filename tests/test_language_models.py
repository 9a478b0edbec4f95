"""The page on language models shows what the study measured."""

import subprocess
import sys
from pathlib import Path

from tests.limits import seconds

ROOT = Path(__file__).parents[1]


def test_the_tables_are_those_of_the_rows() -> None:
    words = [sys.executable, "benchmarks/lm_study.py", "--show", "--out", "results/lm"]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=seconds(120), check=True
    )
    page = (ROOT / "docs" / "language-models.md").read_text(encoding="utf-8")
    numbers = page.partition("## Numbers")[2].partition("\n## ")[0]
    shown = [line for line in numbers.splitlines() if line.startswith(("| ", "### "))]
    assert len(shown) > 30
    assert shown == [line for line in done.stdout.splitlines() if line.startswith(("| ", "### "))]
