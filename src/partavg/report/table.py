"""Tables: the comparison, as a page, a spreadsheet and a paper want it."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean, stdev

from partavg.metrics.metric import Column, number
from partavg.metrics.table import presented
from partavg.registry import check_name
from partavg.report.runs import Group

_LONG = 48  # letters that a cell has in one line


@dataclass(frozen=True, slots=True)
class TextTable:
    """Text in rows; the first cell of a row names it. Rows in `marked` are set off."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    marked: frozenset[int] = frozenset()

    def html(self, kind: str = "") -> str:
        """A table that scrolls if it is wider than the page, by keys as well."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.head)
        body = "\n".join(
            ('<tr class="marked">' if number in self.marked else "<tr>")
            + _name(row[0])
            + "".join(map(_cell, row[1:]))
            + "</tr>"
            for number, row in enumerate(self.rows)
        )
        caption = escape(self.caption)
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
            f'<table class="{kind}"><caption>{caption}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


def _name(text: str) -> str:
    kind = ' class="long"' if len(text) > _LONG else ""
    broken = escape(text).replace("/", "/<wbr>").replace(".", ".<wbr>")  # where a phone breaks it
    return f'<th scope="row"{kind}>{broken}</th>'


def _cell(text: str) -> str:
    kind = ' class="long"' if len(text) > _LONG else ""
    return f"<td{kind}>{escape(text)}</td>"


def columns(groups: Sequence[Group]) -> list[Column]:
    """The columns of the comparison in which there is something."""
    known = {key for group in groups for summary in group.shown.summaries for key in summary}
    asked = (metric for group in groups for metric in group.metrics)
    every = (column for metric in presented(asked) for column in metric.columns)
    return [column for column in every if column.key in known]


def comparison(groups: Sequence[Group], wanted: Sequence[Column] | None = None) -> TextTable:
    """A row per group: mean, and deviation over its seeds; of all columns, or those wanted."""
    shown = columns(groups) if wanted is None else wanted
    several = any(len(group.runs) > 1 for group in groups)
    headings = (column.heading for column in shown)
    head = ("scheme", *(["seeds"] if several else []), *headings)
    rows = [
        (
            f"{group.name} ({group.status})" if group.status else group.name,
            *([str(len(group.result.summaries))] if several else []),
            *(group.shown.text(column.key, column.form, column.scale) for column in shown),
        )
        for group in groups
    ]
    caption = "Mean ± standard deviation over seeds" if several else "At the end of each run"
    if not all(group.result.summaries for group in groups):
        caption += "; of schemes with none finished, so far"
    return TextTable(caption, head, rows)


def to_csv(groups: Sequence[Group]) -> str:
    """The numbers of the comparison, unrounded: the mean of each column, and its deviation."""
    shown = columns(groups)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = [name for column in shown for name in (column.key, f"{column.key}_deviation")]
    table.writerow(["scheme", "runs", "finished", *names])
    for group in groups:
        finished = len(group.result.summaries)
        numbers: list[object] = []
        for column in shown:
            values = group.result.values(column.key)
            numbers.append(mean(values) if values else "")
            numbers.append(stdev(values) if len(values) > 1 else "")
        table.writerow([group.name, len(group.runs), finished, *numbers])
    return text.getvalue()


def to_latex(groups: Sequence[Group], keys: Sequence[str] | None = None) -> str:
    """The comparison as a table of the booktabs package, the best results in bold.

    Of the columns with these keys, in this order; without any, of all but the seconds.
    """
    chosen = _chosen(groups, keys)
    shown = comparison(groups, chosen)
    marked = [_best(groups, column) for column in chosen]
    first = len(shown.head) - len(chosen)
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(shown.head) - 1)}}}",
        r"\toprule",
        " & ".join(map(latex, shown.head)) + r" \\",
        r"\midrule",
    ]
    for place, row in enumerate(shown.rows):
        bold = [False] * first + [place in best for best in marked]
        cells = map(_latex_number, row[1:], bold[1:])
        lines.append(" & ".join([latex(row[0]), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _chosen(groups: Sequence[Group], keys: Sequence[str] | None) -> list[Column]:
    known = {column.key: column for column in columns(groups)}
    if keys is None:
        return [column for key, column in known.items() if key != "seconds"]
    for key in keys:
        check_name("--columns", key, known)
    return [known[key] for key in keys]


def _best(groups: Sequence[Group], column: Column) -> set[int]:
    """Which of several groups that ended are best in a column that says how good models are."""
    asked = [metric for group in groups for metric in group.metrics]
    metric = next(metric for metric in presented(asked) if column in metric.columns)
    means = {
        place: mean(values)
        for place, group in enumerate(groups)
        if not group.status and (values := group.result.values(column.key, column.scale))
    }
    if metric.kind != "result" or metric.better == "neither" or len(means) < 2:
        return set()
    shown = {place: number(value, column.form) for place, value in means.items()}
    best = (max if metric.better == "higher" else min)(means, key=lambda place: means[place])
    level = {place for place, text in shown.items() if text == shown[best]}
    return level if len(level) < len(means) else set()


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
}  # fmt: skip


def latex(text: str) -> str:
    """Text in which nothing is a command."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _latex_number(text: str, bold: bool = False) -> str:
    if text == "–":
        return "--"
    formula = text.replace("±", r"\pm")
    return rf"$\mathbf{{{formula}}}$" if bold else f"${formula}$"
