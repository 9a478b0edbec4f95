"""The report of a comparison: one HTML page that works offline."""

from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from partavg.compare import COLUMNS, NOTE, Entry, Result, results, verdict
from partavg.folder import write_text
from partavg.report.chart import Line, chart
from partavg.tables import differences, dump

CHARTS = {
    "discrepancy": ("Model discrepancy after each step", 1.0),
    "accuracy": ("Accuracy of the averaged model on the test set, %", 100.0),
    "loss": ("Mini-batch loss, mean over workers", 1.0),
}
"""Metric -> title, scale."""


def write_report(path: Path, entries: Sequence[Entry]) -> Path:
    """Write the page of a finished comparison."""
    found = results(entries)
    config = entries[0].config
    changing = set().union(*(differences(config, entry.config) for entry in entries))
    template = resources.files("partavg.report").joinpath("page.html").read_text("utf-8")
    page = Template(template).substitute(
        verdict=escape(verdict(found)),
        task=escape(_task(entries)),
        table=_table(found),
        note=escape(NOTE),
        legend=_legend(found),
        charts="\n".join(_figure(metric, entries) for metric in CHARTS),
        changing=escape(", ".join(sorted(changing)) or "nothing"),
        config=escape(dump(config)),
    )
    write_text(path, page)
    return path


def _task(entries: Sequence[Entry]) -> str:
    """What was run, in words."""
    config = entries[0].config
    training = config.training
    steps = training.steps is not None
    budget = f"{training.steps} steps" if steps else f"{training.epochs:g} epochs"
    if training.scale != 1:
        budget += f", scaled to {training.scale:g} of that and of the data"
    interval = max(entry.config.averaging.interval for entry in entries)
    return (
        f"{training.workers} workers train {config.model.name} on {config.data.name} "
        f"({config.split.name} split) for {budget}; averaging interval {interval}."
    )


def _table(found: Sequence[Result]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("scheme", *COLUMNS))
    body = "\n".join(
        f"<tr><th>{escape(result.scheme)}</th>"
        + "".join(f"<td>{result.text(*how)}</td>" for how in COLUMNS.values())
        + "</tr>"
        for result in found
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _figure(metric: str, entries: Sequence[Entry]) -> str:
    title, scale = CHARTS[metric]
    schemes = list(dict.fromkeys(entry.scheme for entry in entries))
    lines = [
        Line(
            f"{entry.scheme}, seed {entry.seed}",
            f"line c{schemes.index(entry.scheme) % 6}",
            [(row["step"], scale * row[metric]) for row in entry.folder.rows() if metric in row],
        )
        for entry in entries
    ]
    if not any(line.points for line in lines):
        return ""
    return f"<figure><figcaption>{title}</figcaption>{chart(title, 'step', lines)}</figure>"


def _legend(found: Sequence[Result]) -> str:
    return "".join(
        f'<span><svg viewBox="0 0 24 8"><path class="line c{index % 6}" d="M1 4H23"/>'
        f"</svg>{escape(result.scheme)}</span>"
        for index, result in enumerate(found)
    )
