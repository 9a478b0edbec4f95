"""The comparison as a table for a paper."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from partavg.comparison import mixed
from partavg.metrics.metric import Column, Metric, number
from partavg.metrics.table import presented
from partavg.pairs import LEVEL, NOT_EVIDENCE, best, compared, how
from partavg.report.runs import Group
from partavg.report.table import AGAINST, comparison, every_column
from partavg.report.words import alike, paired


def to_latex(groups: Sequence[Group], wanted: Sequence[str] | None = None) -> str:
    """The comparison as a table of the booktabs package, the best results in bold.

    Of the columns with these keys or headings, in this order; without any, of results and traffic.
    What is wider than the page is shrunk to it, by the package graphicx.
    """
    chosen = _chosen(groups, wanted)
    shown = comparison(groups, chosen)
    marked = [_best(groups, column) for column in chosen]
    first = len(shown.head) - len(chosen)
    lines = [
        r"% \usepackage{booktabs, graphicx}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex(_caption(groups))}}}\smallskip",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(shown.head) - 1)}}}",
        r"\toprule",
        " & ".join(map(latex, shown.head)) + r" \\",
        r"\midrule",
    ]
    for place, row in enumerate(shown.rows):
        bold = [False] * first + [place in those for those in marked]
        cells = map(_number, row[1:], bold[1:])
        lines.append(" & ".join([latex(row[0]), *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if said := _footnote(groups, chosen, any(marked)):
        lines += ["", r"\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {latex(said)}}}"]
    return "\n".join([*lines, r"\end{table}", ""])


def _chosen(groups: Sequence[Group], wanted: Sequence[str] | None) -> list[Column]:
    every = every_column(groups)
    if wanted is None:
        return [
            column
            for column in every
            if column.key in (AGAINST, "bytes") or _result(groups, column)
        ]
    known = {column.heading: column for column in every} | {column.key: column for column in every}
    for name in wanted:
        if name not in known:
            there = ", ".join(column.key for column in every)
            raise ValueError(f"--columns {name!r} is not in the table: use some of {there}")
    return [known[name] for name in wanted]


def _best(groups: Sequence[Group], column: Column) -> set[int]:
    """Which groups that ended are best in a column of results, with all that are tied with it."""
    metric = _result(groups, column)
    found = {
        place: group.result
        for place, group in enumerate(groups)
        if not group.status and group.result.values(column.key)
    }
    results = list(found.values())
    if metric is None or metric.better == "neither":
        return set()
    if mixed(results) or not alike([groups[place] for place in found]):
        return set()
    metric = replace(metric, key=column.key)
    first = best(results, metric)
    ties = {pair.scheme for pair in compared(results, metric, first) if pair.outcome == "tie"}
    texts = {
        place: number(mean(result.values(column.key, column.scale)), column.form)
        for place, result in found.items()
    }
    reads = next(texts[place] for place, result in found.items() if result is first)
    level = {p for p, result in found.items() if result.scheme in ties or texts[p] == reads}
    return level if len(level) < len(found) else set()


def _result(groups: Sequence[Group], column: Column) -> Metric | None:
    """The metric of a column of results; None of spreads and costs."""
    asked = [metric for group in groups for metric in group.metrics]
    found = next((one for one in presented(asked) if column in one.columns), None)
    return found if found and found.kind == "result" else None


def _caption(groups: Sequence[Group]) -> str:
    """What the numbers are, and that too few seeds are no evidence."""
    most = max((len(group.result.summaries) for group in groups), default=0)
    said = "Mean ± standard deviation over seeds" if most > 1 else "At the end of each run"
    if not all(group.result.summaries for group in groups):
        said += "; of schemes with none finished, so far"
    few = NOT_EVIDENCE.get(most)
    return f"{said}; {few}." if few else f"{said}."


def _footnote(groups: Sequence[Group], chosen: Sequence[Column], bold: bool) -> str:
    """How schemes were compared, and what is bold."""
    pairs = paired(groups)
    said = [how(pairs)] if any(column.key == AGAINST for column in chosen) else []
    if bold:
        told = any(pair.p is not None for pair in pairs)
        tied = f", and those tied with it (paired t tests, p ≥ {LEVEL:g} by Holm)" if told else ""
        said.append(f"Bold: the best mean of a column{tied}.")
    return " ".join(filter(None, said))


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    "±": r"$\pm$", "≥": r"$\geq$", "≤": r"$\leq$", "−": "$-$", "×": r"$\times$", "→": r"$\to$",
    "[": "{[}", "]": "{]}", "*": "{*}",  # a row that began so would be an option of the one before
    "–": "--", "—": "---", "…": r"\dots{}", "∞": r"$\infty$", "μ": r"$\mu$", "µ": r"$\mu$",
}  # fmt: skip
_GREEK = ("alpha beta gamma delta epsilon zeta eta theta kappa lambda xi pi rho sigma tau phi "
          "chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega")  # fmt: skip


def _greek() -> dict[str, str]:
    """Greek letters as formulas; those that look like Latin ones have none."""
    kinds = {True: "SMALL", False: "CAPITAL"}
    return {
        unicodedata.lookup(
            f"GREEK {kinds[name.islower()]} LETTER {name.upper().replace('LAMBDA', 'LAMDA')}"
        ): f"$\\{name}$"
        for name in _GREEK.split()
    }


_LATEX |= _greek()


def latex(text: str) -> str:
    """Text in which nothing is a command."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _number(text: str, bold: bool = False) -> str:
    """A cell: a number in a formula, and what stands behind it."""
    if text == "–":
        return "--"
    marks = [mark for mark in ("tie", "one seed", "two seeds") if text.endswith(f" {mark}")]
    value = text.removesuffix(f" {marks[0]}") if marks else text
    value = re.sub(r"e([+-]?)0*(\d+)", _power, value)
    formula = value.replace("±", r"\pm").replace("−", "-").replace(" [", r"\ [")
    shown = rf"$\mathbf{{{formula}}}$" if bold else f"${formula}$"
    return f"{shown} {marks[0]}" if marks else shown


def _power(exponent: re.Match[str]) -> str:
    return rf"\cdot 10^{{{exponent[1].removeprefix('+')}{exponent[2]}}}"
