"""Settings and environments side by side, the differences first."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partavg.report.runs import Group, ShownRun
from partavg.report.table import TextTable

Keys = Mapping[str, Any]


def side_by_side(
    caption: str, groups: Sequence[Group], take: Callable[[ShownRun], Keys]
) -> tuple[TextTable, TextTable]:
    """What differs between groups, or within a single one, and what they have in common."""
    known = list(dict.fromkeys(key for g in groups for run in g.runs for key in take(run)))
    cells = {
        key: [_distinct(take(run).get(key) for run in group.runs) for group in groups]
        for key in known
    }
    lone = len(groups) == 1
    differing = {
        key
        for key, row in cells.items()
        if len({frozenset(cell) for cell in row}) > 1 or (lone and len(row[0]) > 1)
    }
    names = tuple(group.name for group in groups)
    apart = [(key, *(_text(cell) for cell in cells[key])) for key in known if key in differing]
    common = [(key, _text(cells[key][0])) for key in known if key not in differing]
    marked = frozenset(range(len(apart)))
    alone = len(groups) == 1 and len(groups[0].runs) == 1
    shared = caption if alone else f"{caption}: what all runs share"
    return (
        TextTable(f"{caption}: what differs", (caption.lower(), *names), apart, marked),
        TextTable(shared, (caption.lower(), "value"), common),
    )


def _distinct(values: Any) -> tuple[str, ...]:
    """As text, in the order in which they appear."""
    return tuple(dict.fromkeys(map(_plain, values)))


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return repr(value) if isinstance(value, float) else str(value)


def _text(values: tuple[str, ...]) -> str:
    return ", ".join(values) if len(values) <= 4 else f"{values[0]} … {values[-1]}"
