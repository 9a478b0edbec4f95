"""The report of a comparison: one HTML page that works offline."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

from partavg.compare import COLUMNS, NOTE, Entry, Result, results, verdict
from partavg.folder import RunFolder, write_text
from partavg.report.chart import Line, chart
from partavg.tables import differences, dump

CHARTS = {
    "discrepancy": ("Model discrepancy after each step", 1.0),
    "accuracy": ("Accuracy of the averaged model on the test set, %", 100.0),
    "loss": ("Mini-batch loss, mean over workers", 1.0),
    "test_loss": ("Loss of the averaged model on the test set", 1.0),
    "discrepancy_due": ("Federated: discrepancy of a part just before it is averaged", 1.0),
    "seconds": ("Federated: seconds per exchange", 1.0),
}
"""Metric -> title, scale."""


class Curve(NamedTuple):
    """A run as it is drawn: its color is the scheme's."""

    scheme: str
    label: str
    folder: RunFolder


def write_report(path: Path, entries: Sequence[Entry]) -> Path:
    """Write the page of a finished comparison."""
    found = results(entries)
    config = entries[0].config
    changing = set().union(*(differences(config, entry.config) for entry in entries))
    curves = [Curve(e.scheme, f"{e.scheme}, seed {e.seed}", e.folder) for e in entries]
    return _write(path, verdict(found), _task(entries), found, curves, changing, dump(config))


def write_gathered(path: Path, folders: Mapping[str, RunFolder]) -> Path:
    """Write the page of any finished runs, simulated or federated, by name."""
    found = [Result(name, (folder.summary(),)) for name, folder in folders.items()]
    curves = [Curve(name, name, folder) for name, folder in folders.items()]
    texts = [folder.config_path.read_text(encoding="utf-8") for folder in folders.values()]
    tables = [_settings(text) for text in texts]
    changing = {
        key
        for table in tables
        for key in {*table, *tables[0]}
        if table.get(key) != tables[0].get(key)
    }
    task = f"{len(found)} runs next to each other."
    return _write(path, "", task, found, curves, changing, texts[0])


def _write(
    path: Path,
    said: str,
    task: str,
    found: Sequence[Result],
    curves: Sequence[Curve],
    changing: Collection[str],
    config: str,
) -> Path:
    template = resources.files("partavg.report").joinpath("page.html").read_text("utf-8")
    page = Template(template).substitute(
        verdict=escape(said),
        task=escape(task),
        table=_table(found) + "".join(map(_clients, found)),
        note=escape(NOTE),
        legend=_legend(found),
        charts="\n".join(_figure(metric, curves) for metric in CHARTS),
        changing=escape(", ".join(sorted(changing)) or "nothing"),
        config=escape(config),
    )
    write_text(path, page)
    return path


def _settings(text: str) -> dict[str, object]:
    """The keys of a run's config, whatever kind of run it is."""
    tables = tomllib.loads(text)
    return {f"{name}.{key}": v for name, values in tables.items() for key, v in values.items()}


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


def _clients(result: Result) -> str:
    """What each client of a federated run sent and received, and when it was away."""
    clients = result.summaries[0].get("clients") if result.summaries else None
    if not clients:
        return ""
    head = ("client", "samples", "MB sent", "MB received", "away at steps")
    rows = [
        (
            f"{result.scheme}: client {client}",
            str(known["samples"]),
            f"{known['sent'] / 1e6:.3f}",
            f"{known['received'] / 1e6:.3f}",
            ", ".join(str(entry["step"]) for entry in known["away"]) or "–",
        )
        for client, known in clients.items()
    ]
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(v)}</td>' for v in row[1:])}</tr>"
        for row in rows
    )
    names = "".join(f"<th>{name}</th>" for name in head)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def _figure(metric: str, curves: Sequence[Curve]) -> str:
    title, scale = CHARTS[metric]
    schemes = list(dict.fromkeys(curve.scheme for curve in curves))
    lines = [
        Line(
            curve.label,
            f"line c{schemes.index(curve.scheme) % 6}",
            [(row["step"], scale * row[metric]) for row in curve.folder.rows() if metric in row],
        )
        for curve in curves
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
