"""Tables of pages are those of results/: made again, and compared."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.limits import seconds

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

sys.path.insert(0, str(ROOT / "benchmarks"))

import few_active  # noqa: E402
import paper_tables  # noqa: E402

PAGES = paper_tables.PAGES


def rows(text: str) -> Iterator[str]:
    """The lines of the tables in a page."""
    return (line for line in text.splitlines() if line.startswith("|"))


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_the_paper_are_made_of_results(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert paper_tables.written(page) == page, "run python tools/paper_tables.py"


def test_every_table_is_on_a_page_and_no_other_has_accuracies() -> None:
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in PAGES]
    marked = [name for page in pages for _, name, _, _ in paper_tables.MARKS.findall(page)]
    assert sorted(marked) == sorted(paper_tables.TABLES)
    for page in pages:
        by_hand = "\n".join(rows(paper_tables.MARKS.sub("", page)))
        assert not re.search(r"\b\d\d\.\d\d\b", by_hand), "a number that nothing checks"


def test_a_number_that_is_not_that_of_results_is_noticed() -> None:
    page = (ROOT / PAGES[0]).read_text(encoding="utf-8")
    forged = page.replace("88.30 ± 0.27", "88.90 ± 0.27")
    assert forged != page
    assert paper_tables.written(forged) == page


def test_what_few_seeds_cannot_tell_and_what_was_not_run_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finished(scheme: str, *accuracies: float) -> None:
        for seed, accuracy in enumerate(accuracies):
            run = tmp_path / "cell" / f"{scheme}-seed{seed}"
            run.mkdir(parents=True)
            (run / "config.toml").touch()
            (run / "summary.json").write_text(f'{{"accuracy": {accuracy}}}')

    monkeypatch.setattr(paper_tables, "RESULTS", tmp_path)
    reported = {"periodic": 89.0, "partial": 90.0}
    finished("periodic", 0.90, 0.91)
    shown = paper_tables.beside("it", reported, "cell")
    assert shown == ("it", "89.00 / 90.50 ± 0.71", "90.00 / not run", "+1.00", "–", "–")
    finished("partial", 0.88, 0.90)
    shown = paper_tables.beside("it", reported, "cell")
    assert shown[4:] == ("−1.50 (two seeds: no interval)", "2")


def test_the_list_of_all_cells_is_that_of_the_runs_and_says_what_the_page_says() -> None:
    assert paper_tables.all_cells() == (ROOT / paper_tables.ALL_CELLS).read_text()
    shown = paper_tables.table("cells")
    for row in paper_tables.rows("results.csv"):
        if row["recipe"].startswith(("table1", "table2", "table3")) and row["measured"]:
            deviation = row["measured_deviation"]
            spread = f" ± {float(deviation):.2f}" if deviation else ""
            reported, measured = float(row["reported"]), float(row["measured"])
            lost = f" ({row['diverged']} of 3 seeds diverged)" if int(row["diverged"]) else ""
            assert f"| {reported:.2f} / {measured:.2f}{spread}{lost} |" in shown, row


def test_the_tables_of_language_models_are_those_of_the_rows() -> None:
    words = [sys.executable, "benchmarks/lm_study.py", "--show", "--out", "results/lm"]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=seconds(120), check=True
    )
    page = (ROOT / "docs" / "language-models.md").read_text(encoding="utf-8")
    numbers = page.partition("## Numbers")[2].partition("\n## ")[0]
    shown = [line for line in numbers.splitlines() if line.startswith(("| ", "### "))]
    assert len(shown) > 30
    assert shown == [line for line in done.stdout.splitlines() if line.startswith(("| ", "### "))]


def test_the_tables_of_few_active_workers_are_those_of_the_rows() -> None:
    found = few_active.read(ROOT / "results" / "participation" / "rows.csv")
    page = (ROOT / "docs" / "solvers.md").read_text(encoding="utf-8")
    section = page.partition("### What newcomers begin with")[2]
    assert few_active.crossed(found) == list(rows(section))
    periodic, *others = few_active.table(found)
    assert len(others) == 18
    assert "| 85.32 ± 0.28 | – | 71 |" in periodic
    assert "85.32 ± 0.28 with 71 MB" in section
