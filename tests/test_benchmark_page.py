"""What the page of benchmarks says and shows is what was measured."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import draw_benchmarks  # noqa: E402

PAGE = draw_benchmarks.PAGE.read_text(encoding="utf-8")


def test_tables_are_those_of_the_files() -> None:
    assert draw_benchmarks.written(PAGE) == PAGE, "run python tools/draw_benchmarks.py"
    marked = [name for _, name, _, _ in draw_benchmarks.MARKS.findall(PAGE)]
    assert sorted(marked) == sorted(draw_benchmarks.TABLES)


@pytest.mark.parametrize("name", draw_benchmarks.PICTURES)
def test_pictures_are_those_of_the_files(name: str) -> None:
    drawn = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
    assert draw_benchmarks.PICTURES[name]() == drawn, "run python tools/draw_benchmarks.py"
    assert f"images/{name}.svg" in PAGE


def test_a_number_that_was_not_measured_is_noticed() -> None:
    forged = PAGE.replace("20.0\u00a0ms | 2.56 |", "21.0\u00a0ms | 2.69 |")
    assert forged != PAGE
    assert draw_benchmarks.written(forged) == PAGE


def test_what_was_copied_stands_in_the_results() -> None:
    known = set(re.findall(r"[\d.,]*\d", (ROOT / "benchmarks" / "RESULTS.md").read_text()))
    for row in draw_benchmarks.rows("measured"):
        assert {row["ours"], row["theirs"]} - {""} <= known, row


def test_every_program_is_named() -> None:
    for name in ("peers", "gpu", "growth", "start", "busy", "engines", "clients", "ranks"):
        assert f"python benchmarks/{name}.py" in PAGE
