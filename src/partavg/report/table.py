"""Tables: the comparison, as a page, a spreadsheet and a paper want it."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean, stdev

from partavg.metrics.metric import Column
from partavg.metrics.table import presented
from partavg.pairs import Compared, how
from partavg.report.runs import Group
from partavg.report.words import paired
from partavg.verdict import main_metric

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
            f'<table class="{kind}"><caption><span>{caption}</span></caption>'
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


AGAINST = "against"
"""The key of the column that has the differences from the reference."""


def every_column(groups: Sequence[Group]) -> list[Column]:
    """The same, and beside what schemes are compared by the differences from the reference."""
    found, pairs = columns(groups), paired(groups)
    if not pairs:
        return found
    main = main_metric([group.result for group in groups])
    keys = [column.key for column in found]
    place = keys.index(main.key) + 1 if main and main.key in keys else len(found)
    return [*found[:place], Column(f"against {pairs[0].reference}", AGAINST, "", 1), *found[place:]]


def comparison(groups: Sequence[Group], wanted: Sequence[Column] | None = None) -> TextTable:
    """A row per group: mean, and deviation over its seeds; of all columns, or those wanted."""
    shown = every_column(groups) if wanted is None else wanted
    pairs = paired(groups)
    against = {pair.scheme: pair.cell for pair in pairs}
    several = any(len(group.runs) > 1 for group in groups)
    headings = (column.heading for column in shown)
    head = ("scheme", *(["seeds"] if several else []), *headings)
    rows = [
        (
            f"{group.name} ({group.status})" if group.status else group.name,
            *([str(len(group.result.summaries))] if several else []),
            *(
                against.get(group.name, "–")
                if column.key == AGAINST
                else group.shown.text(column.key, column.form, column.scale)
                for column in shown
            ),
        )
        for group in groups
    ]
    return TextTable(" ".join(filter(None, [_caption(groups), how(pairs)])), head, rows)


def _caption(groups: Sequence[Group]) -> str:
    several = any(len(group.runs) > 1 for group in groups)
    said = "Mean ± standard deviation over seeds" if several else "At the end of each run"
    if not all(group.result.summaries for group in groups):
        return f"{said}; of schemes with none finished, so far"
    return f"{said}." if paired(groups) else said


def to_csv(groups: Sequence[Group]) -> str:
    """The numbers of the comparison, unrounded: the mean of each column, and its deviation.

    Where schemes are compared, the difference from the reference, its 95 % interval, p by Holm.
    """
    shown = columns(groups)
    pairs = {pair.scheme: pair for pair in paired(groups)}
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = [name for column in shown for name in (column.key, f"{column.key}_deviation")]
    names += [AGAINST, *(f"{AGAINST}_{end}" for end in ("low", "high", "p"))] if pairs else []
    table.writerow(["scheme", "runs", "finished", *names])
    for group in groups:
        finished = len(group.result.summaries)
        numbers: list[object] = []
        for column in shown:
            values = group.result.values(column.key)
            numbers.append(mean(values) if values else "")
            numbers.append(stdev(values) if len(values) > 1 else "")
        numbers += _numbers(pairs.get(group.name)) if pairs else []
        table.writerow([group.name, len(group.runs), finished, *numbers])
    return text.getvalue()


def _numbers(pair: Compared | None) -> list[object]:
    """A difference in the units of the summaries; nothing where there is none."""
    if pair is None or not pair.difference.seeds:
        return [""] * 4
    found, scale = pair.difference, pair.difference.metric.scale
    low, high = (end / scale for end in found.interval) if found.interval else ("", "")
    return [found.gap / scale, low, high, "" if pair.adjusted is None else pair.adjusted]
