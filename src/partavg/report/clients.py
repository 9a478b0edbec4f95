"""The clients of a federated run, one by one: what they have, how they do, when they were away."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from partavg.report.runs import Group, ShownRun
from partavg.report.table import TextTable

_MOST = 200  # clients of a run, and
_TIMES = 6  # times of one reason that are listed
_NONE = "–"

About = Mapping[str, Any]
"""What a summary says of a client."""


class _Column(NamedTuple):
    head: str
    cell: Callable[[About], str]
    always: bool = True
    """Else it is there only if a client has something in it."""


def section(group: Group) -> list[str]:
    """For each run that had clients what is known of them, and why some were away."""
    pairs = ((_table(run), _reasons(run)) for run in group.runs)
    return [
        html
        for each, reasons in pairs
        if each.rows
        for html in (each.html(), reasons.html("sides") if reasons.rows else "")
    ]


def _table(run: ShownRun) -> TextTable:
    known = _known(run)
    shown = known[:_MOST]
    columns = [
        column
        for column in _COLUMNS
        if column.always or any(column.cell(about) != _NONE for _, about in shown)
    ]
    rows = [
        (f"client {client}", *(column.cell(about) for column in columns)) for client, about in shown
    ]
    some = f", the first {_MOST} of {len(known)}" if len(known) > _MOST else ""
    heads = ("client", *(column.head for column in columns))
    return TextTable(f"Clients of {run.name}{some}", heads, rows)


def _known(run: ShownRun) -> list[tuple[str, About]]:
    """What is told of each client, by their numbers."""
    told: Mapping[str, About] = (run.summary or {}).get("clients") or {}
    return sorted(told.items(), key=lambda item: _number(item[0]))


def _number(client: str) -> tuple[int, str]:
    return int(client) if client.isdecimal() else 1 << 62, client


def _count(key: str) -> Callable[[About], str]:
    return lambda about: f"{about[key]:,}" if about.get(key) else _NONE


def _scored(key: str, form: str, scale: float = 1.0) -> Callable[[About], str]:
    def cell(about: About) -> str:
        value = about.get("scored", {}).get(key)
        return _NONE if value is None else format(scale * value, form)

    return cell


def _away(about: About) -> str:
    times = about.get("absences", len(about["away"]))
    return f"{times}×" if times else _NONE


def _reasons(run: ShownRun) -> TextTable:
    """Why clients were away, and when: for each reason its last steps."""
    rows = []
    for client, about in _known(run)[:_MOST]:
        steps: dict[str, dict[str, None]] = {}
        for entry in about["away"]:
            steps.setdefault(str(entry.get("why", "")), {})[str(entry["step"])] = None
        for why, when in steps.items():
            last = list(when)[-_TIMES:]
            said = f"{'… ' if len(when) > _TIMES else ''}{', '.join(last)}"
            rows.append((f"client {client}", said, why))
    return TextTable(f"Why clients of {run.name} were away", ("client", "at steps", "why"), rows)


def _seen(about: About) -> str:
    return f"step {about['seen']}" if "seen" in about else _NONE


_COLUMNS = (
    _Column("samples", _count("samples"), always=False),
    _Column("test samples", _count("tests"), always=False),
    _Column("accuracy %", _scored("accuracy", ".2f", 100), always=False),
    _Column("test loss", _scored("loss", ".4f"), always=False),
    _Column("MB sent", lambda about: f"{about['sent'] / 1e6:.3f}"),
    _Column("MB received", lambda about: f"{about['received'] / 1e6:.3f}"),
    _Column("last seen", _seen, always=False),
    _Column("not waited for", _count("late"), always=False),
    _Column("away", _away),
)
