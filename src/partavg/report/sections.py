"""Sections of a report that are not charts: title, what was run, splits."""

import json
from collections.abc import Sequence
from html import escape

from partavg.report.bars import bars
from partavg.report.charts import Chart
from partavg.report.runs import Group
from partavg.report.table import TextTable
from partavg.report.words import scheme, tasks
from partavg.sentences import inside

_FEW = 8  # groups or tasks that are listed without being asked
SPLITS = 3
"""Pictures of splits that a report has."""
_WORKERS = 128  # in such a picture


def title(groups: Sequence[Group]) -> str:
    """What the page is about."""
    if len(groups) == 1 and len(groups[0].runs) == 1:
        return f"Run {groups[0].name}"
    names = [group.name for group in groups]
    if 1 < len(names) <= 4:
        return f"Comparison of {', '.join(names[:-1])} and {names[-1]}"
    runs = sum(len(group.runs) for group in groups)
    return f"Comparison of {runs} runs" if groups else "No runs yet"


def story(groups: Sequence[Group]) -> str:
    """What was run, in words: each task, and how each group averaged."""
    found = tasks(groups)
    blocks = []
    for said, members in found.items():
        items = "".join(
            f"<li><strong><bdi>{escape(group.name)}</bdi></strong> averages "
            f"{escape(scheme(group.runs[0].settings))}{_runs(group)}</li>"
            for group in members
        )
        blocks.append(f"<p>{escape(said)}.</p><ul>{items}</ul>")
    if len(groups) <= _FEW:
        return f'<section class="story">{"".join(blocks)}</section>'
    count = f"{len(groups)} schemes of {len(found)} task{'s' if len(found) > 1 else ''}, in words"
    return (
        f'<section class="story"><details id="story"><summary>{count}</summary>'
        f"{''.join(blocks)}</details></section>"
    )


def _runs(group: Group) -> str:
    """How many seeds it has and whether they are finished, where that is worth saying."""
    seeds = f", {len(group.runs)} seeds" if len(group.runs) > 1 else ""
    state = f' <span class="open">{escape(group.status)}</span>' if group.status else ""
    return escape(seeds + _early(group)) + state


def _early(group: Group) -> str:
    """After which steps runs were stopped early, if any were."""
    found = ((run.summary or {}).get("stopped_at") for run in group.runs)
    ends = [step for step in found if isinstance(step, int)]
    steps = sorted(set(ends))
    if not steps:
        return ""
    last = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    some = f"{len(ends)} " if len(ends) < len(group.runs) else ""
    spent = any((run.summary or {}).get("stopped_by") == "max_epsilon" for run in group.runs)
    why = "ended by max_epsilon" if spent else "stopped early"
    return f", {some}{why} after {last}"


def once(chart: Chart, groups: Sequence[Group]) -> TextTable:
    """What was measured but once: numbers, where a curve would be a dot."""
    rows = [
        (
            groups[line.group].name + (f", {chart.second}" if line.other else ""),
            f"{line.curve.x[0]:.4g}",
            f"{line.curve.y[0]:.4g}{f' {chart.unit}' if chart.unit else ''}",
        )
        for line in chart.lines
        if not line.seed
    ]
    return TextTable("Measured once", ("scheme", chart.x_label, inside(chart.title)), rows)


def splits(groups: Sequence[Group]) -> list[str]:
    """Pictures of which worker owns which labels; runs with one seed mostly share one."""
    found = distinct_splits(groups)
    if not found:
        return []
    parts = ["<h2>Labels of each worker</h2>", '<div class="splits">']
    for every, owners in found[:SPLITS]:
        whose = few(owners, 4) if len(found) > 1 else "all runs"
        some = every[:_WORKERS]
        first = f"; the first {_WORKERS} of {len(every)} workers" if some != every else ""
        label = escape(f"Samples of each class: {whose}{first}")
        parts.append(
            f'<figure class="split"><figcaption class="soft">{label}</figcaption>'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
            f"{bars(whose, some, inside=True)}</div></figure>"
        )
    parts.append("</div>")
    if len(found) > SPLITS:
        more = len(found) - SPLITS
        noun = "split is" if more == 1 else "splits are"
        parts.append(f'<p class="soft">{more} more {noun} not shown.</p>')
    return parts


def distinct_splits(groups: Sequence[Group]) -> list[tuple[list[list[int]], list[str]]]:
    """Each split once, counts [workers][classes], and the names of its runs."""
    owners: dict[str, list[str]] = {}
    for group in groups:
        for run in group.runs:
            if run.split:
                owners.setdefault(json.dumps(run.split), []).append(run.name)
    return [(json.loads(counts), names) for counts, names in owners.items()]


def few(names: Sequence[str], most: int) -> str:
    """So many names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more
