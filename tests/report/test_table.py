import csv
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.folders import comparison, make

from partavg.report.latex import latex, to_latex
from partavg.report.page import page
from partavg.report.runs import gather, grouped
from partavg.report.table import comparison as compared
from partavg.report.table import every_column, to_csv


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
    assert lines[7] == r"scheme & seeds & accuracy \% & training loss & MB sent & seconds \\"
    by_name = {line.partition(" & ")[0]: line for line in lines}
    assert r"\mathbf{92.36" in by_name["partial"]
    assert r"$\mathbf{0.250 \pm 0.000}$ & $0.1" in by_name["periodic"], "the lowest loss"
    assert "mathbf" not in by_name[r"open (unfinished, step 100)"]


def test_nothing_is_best_of_several_tasks(tmp_path: Path) -> None:
    comparison(tmp_path)
    change(tmp_path / "partial-seed0", accuracy=0.95)
    assert r"\mathbf" in to_latex(grouped(gather([tmp_path])))
    make(tmp_path / "longer", steps=200)
    assert r"\mathbf" not in to_latex(grouped(gather([tmp_path])))


def test_columns_of_a_paper_are_those_that_there_are(tmp_path: Path) -> None:
    comparison(tmp_path)
    groups = grouped(gather([tmp_path]))
    with pytest.raises(ValueError, match="--columns 'accuracies' is not in the table: use some of"):
        to_latex(groups, ["accuracies"])
    by_heading = to_latex(groups, ["MB sent", "accuracy %"])
    assert by_heading == to_latex(groups, ["bytes", "accuracy"])


def seeds_of(folder: Path, **schemes: tuple[float, ...]) -> list:
    """Groups whose seeds ended with these accuracies."""
    for name, accuracies in schemes.items():
        for seed, accuracy in enumerate(accuracies):
            make(folder / f"{name}-seed{seed}", seed=seed, parts=1, rich=False)
            change(folder / f"{name}-seed{seed}", accuracy=accuracy)
    return grouped(gather([folder]))


def test_all_that_are_tied_with_the_best_are_bold(tmp_path: Path) -> None:
    groups = seeds_of(
        tmp_path,
        periodic=(0.80, 0.70, 0.90),
        a_1=(0.83, 0.70, 0.92),
        far=(0.60, 0.501, 0.699),
    )
    text = to_latex(groups, ["accuracy", "against"])
    by_name = {line.partition(" & ")[0]: line for line in text.splitlines()}
    assert r"$\mathbf{81.67 \pm 11.06}$ & $+1.67\ [-2.13, +5.46]$ tie \\" in by_name[r"a\_1"]
    assert r"$\mathbf{80.00 \pm 10.00}$ & -- \\" in by_name["periodic"]
    assert "mathbf" not in by_name["far"]
    assert "tie" not in by_name["far"]
    assert (
        r"paired by seed (3 seeds), 95 \% intervals, each for itself; tie: no difference that the "
        r"seeds can tell, p $\geq$ 0.05 by Holm over 2 comparisons. Bold: the best mean of a "
        r"column, and those tied with it (paired t tests, p $\geq$ 0.05 by Holm).}"
    ) in text
    rows = {row["scheme"]: row for row in csv.DictReader(to_csv(groups).splitlines())}
    assert float(rows["a_1"]["against"]) == pytest.approx(0.05 / 3)
    assert float(rows["far"]["against_high"]) < 0
    assert rows["periodic"]["against"] == ""


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_a_paper_can_be_typeset(tmp_path: Path, seeds: int) -> None:
    """Braces and environments are closed, formulas end, rows have all cells."""
    values = (0.8, 0.7, 0.9)[:seeds]
    text = to_latex(seeds_of(tmp_path, periodic=values, b=values[::-1]))
    said = {1: "one seed: not evidence.}", 2: "two seeds: no interval.}", 3: "over seeds.}"}[seeds]
    assert said in next(line for line in text.splitlines() if line.startswith(r"\caption{"))
    assert re.findall(r"\\begin{(\w+)}", text) == re.findall(r"\\end{(\w+)}", text)[::-1]
    assert text.startswith("% \\usepackage{booktabs, graphicx}\n")
    bare = re.sub(r"\\[{}$%&#_]", "", text.partition("\n")[2]).replace("{!}{%\n", "{!}{\n")
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert "%" not in bare
    assert bare.isascii()
    body = [line for line in bare.splitlines() if line.endswith(r"\\")]
    assert len({line.count("&") for line in body}) == 1


def test_the_page_says_what_was_compared(tmp_path: Path) -> None:
    three = compared(seeds_of(tmp_path / "3", periodic=(0.8, 0.7, 0.9), b=(0.83, 0.7, 0.92)))
    place = three.head.index("against periodic")
    assert three.head[place - 1] == "accuracy %"
    assert [row[place] for row in three.rows] == ["–", "+1.67 [−2.13, +5.46] tie"]
    assert three.caption.endswith("by Holm over 1 comparison.")
    one = compared(seeds_of(tmp_path / "1", periodic=(0.8,), b=(0.83,)))
    assert one.caption == (
        "At the end of each run. Against periodic by accuracy: one seed: not evidence."
    )
    assert one.rows[1][2] == "+3.00 one seed"


def test_validation_is_not_compared_with_test(tmp_path: Path) -> None:
    seeds_of(tmp_path, periodic=(0.8, 0.7, 0.9), b=(0.9, 0.8, 0.99))
    for seed in range(3):
        change(tmp_path / f"b-seed{seed}", judged_on="validation")
    groups = grouped(gather([tmp_path]))
    assert not any(name.startswith("against") for name in compared(groups).head)
    assert "mathbf" not in to_latex(groups)
    assert "others on the test set: they cannot be compared." in page(gather([tmp_path]))


def change(path: Path, **values: object) -> None:
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | values))


def test_latex_is_escaped() -> None:
    assert latex("[1] *") == "{[}1{]} {*}", "no option of the line break before it"
    assert latex('<a|"b">~^τ λ Ω ≥×−–…') == (
        r"\textless{}a\textbar{}''b''\textgreater{}\textasciitilde{}\textasciicircum{}"
        r"$\tau$ $\lambda$ $\Omega$ $\geq$$\times$$-$--\dots{}"
    )
    assert latex(r"50% of a_b & \c{d}") == r"50\% of a\_b \& \textbackslash{}c\{d\}"


def test_columns_without_numbers_are_left_out(tmp_path: Path) -> None:
    path = make(tmp_path / "run")
    (path / "summary.json").write_text('{"steps": 1, "scale": 1.0, "bytes": 5000000}')
    assert compared(grouped(gather([path]))).head == ("scheme", "MB sent")


HOSTILE = [
    "a_b%c", r"x&y#z$1^2~{}", r"back\slash", "größe τ=8 λ ≥ 1 × <lr|0.1> – …", "[1] {", "*2",
    '"quoted"',
]  # fmt: skip


def test_numbers_that_exploded_are_short(tmp_path: Path) -> None:
    groups = seeds_of(tmp_path, periodic=(0.8, 0.7, 0.9), b=(0.83, 0.7, 0.92))
    change(tmp_path / "b-seed0", train_loss=8.7e22, bytes=1e-3)
    text = to_latex(grouped(gather([tmp_path])))
    assert r"$2.9\cdot 10^{22} \pm 5.0\cdot 10^{22}$" in text
    assert not re.search(r"\d{15}|\de[+-]?\d", text)
    assert groups


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_latex_compiles_it_and_nothing_is_wider_than_the_page(tmp_path: Path) -> None:
    """Seeds, ties, names with letters that are commands, unfinished runs, numbers that exploded."""
    values = (0.8, 0.7, 0.9)
    groups = seeds_of(tmp_path / "3", periodic=values, b=(0.83, 0.7, 0.92), far=(0.6, 0.5, 0.7))
    hostile = [replace(groups[k % 3], name=name) for k, name in enumerate(HOSTILE)]
    change(tmp_path / "3/far-seed0", train_loss=8.7e22)
    exploded = grouped(gather([tmp_path / "3"]))
    make(tmp_path / "3/open", finished=False)
    unfinished = grouped(gather([tmp_path / "3"]))
    one = seeds_of(tmp_path / "1", periodic=(0.8,), b=(0.83,))
    two = seeds_of(tmp_path / "2", periodic=(0.8, 0.7), b=(0.83, 0.9))
    wide = [column.key for column in every_column(groups)]
    tables = [to_latex(each) for each in (groups, hostile, exploded, unfinished, one, two)]
    begun = [r"\documentclass{article}", r"\usepackage{booktabs, graphicx}", r"\begin{document}"]
    paper = [*begun, *tables, to_latex(groups, wide), r"\end{document}", ""]
    (tmp_path / "paper.tex").write_text("\n".join(paper), encoding="utf-8")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert "Overfull" not in log
    assert (tmp_path / "paper.pdf").stat().st_size > 0
