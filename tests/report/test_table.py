import csv
import json
from pathlib import Path

import pytest
from tests.report.folders import comparison, make

from partavg.report.runs import gather, grouped
from partavg.report.table import comparison as compared
from partavg.report.table import latex, to_csv, to_latex


def test_numbers_for_a_spreadsheet(tmp_path: Path) -> None:
    comparison(tmp_path)
    make(tmp_path / "open", finished=False)
    rows = {row["scheme"]: row for row in csv.DictReader(
        to_csv(grouped(gather([tmp_path]))).splitlines())}  # fmt: skip
    one = rows["partial"]
    assert (one["runs"], one["finished"]) == ("2", "2")
    assert float(one["accuracy_deviation"]) == pytest.approx(0.01 / 2**0.5)
    assert rows["open"]["accuracy"] == ""
    assert rows["open"]["finished"] == "0"


def test_a_run_that_goes_on_has_what_it_has_so_far(tmp_path: Path) -> None:
    comparison(tmp_path)
    make(tmp_path / "open", finished=False)
    table = compared(grouped(gather([tmp_path])))
    rows = {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}
    going = rows["open (unfinished, step 100)"]
    assert (going["accuracy %"], going["MB sent"], going["training loss"]) == ("88.72", "0.1", "–")
    assert going["peak discrepancy"] == "0.420"
    assert table.caption.endswith("; of schemes with none finished, so far")


def test_a_table_for_a_paper(tmp_path: Path) -> None:
    comparison(tmp_path)
    text = to_latex(grouped(gather([tmp_path])))
    assert r"partial & $2$ & $89.22 \pm 0.71$ &" in text, "nobody is best where all are level"
    assert r"accuracy \% &" in text
    assert "seconds" not in text
    for word in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrr"):
        assert word in text


def test_the_best_results_are_bold(tmp_path: Path) -> None:
    comparison(tmp_path)
    make(tmp_path / "open", finished=False)
    change(tmp_path / "partial-seed0", accuracy=0.95, train_loss=0.5)
    text = to_latex(grouped(gather([tmp_path])), ["accuracy", "train_loss", "bytes", "seconds"])
    lines = text.splitlines()
    assert lines[3] == r"scheme & seeds & accuracy \% & training loss & MB sent & seconds \\"
    by_name = {line.partition(" & ")[0]: line for line in lines}
    assert r"\mathbf{92.36" in by_name["partial"]
    assert r"$\mathbf{0.250 \pm 0.000}$ & $0.1" in by_name["periodic"], "the lowest loss"
    assert "mathbf" not in by_name[r"open (unfinished, step 100)"]


def test_columns_of_a_paper_are_those_that_there_are(tmp_path: Path) -> None:
    comparison(tmp_path)
    with pytest.raises(ValueError, match="--columns = 'accuracies' is not known: did you mean"):
        to_latex(grouped(gather([tmp_path])), ["accuracies"])


def change(path: Path, **values: float) -> None:
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | values))


def test_latex_is_escaped() -> None:
    assert latex(r"50% of a_b & \c{d}") == r"50\% of a\_b \& \textbackslash{}c\{d\}"


def test_columns_without_numbers_are_left_out(tmp_path: Path) -> None:
    path = make(tmp_path / "run")
    (path / "summary.json").write_text('{"steps": 1, "scale": 1.0, "bytes": 5000000}')
    assert compared(grouped(gather([path]))).head == ("scheme", "MB sent")
