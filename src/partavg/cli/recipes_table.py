"""The table that `partavg recipes` prints: what the paper reports for each."""

from itertools import pairwise

from rich import box
from rich.table import Table

from partavg.recipes.files import about, find, paper, read

_COLUMNS = ("periodic", "partial", "synchronous", "note")


def recipes_table(names: list[str]) -> Table:
    """A line per recipe, and a column per scheme that one of them has."""
    table = Table(
        box=box.SIMPLE_HEAD,
        caption="Accuracy in % as the paper reports it; run one with `partavg run NAME` or "
        "`partavg compare NAME`, a table with `partavg reproduce TABLE`.",
        caption_justify="left",
    )
    rows = {name: _row(name) for name in names}
    columns = [column for column in _COLUMNS if any(row[column] for row in rows.values())]
    table.add_column("recipe", no_wrap=True)
    for column in columns:
        note = column == "note"
        table.add_column(column, justify="left" if note else "right", no_wrap=not note)
    for name, follower in pairwise([*names, ""]):
        ends = name.partition("/")[0] != follower.partition("/")[0]
        table.add_row(name, *(rows[name][column] for column in columns), end_section=ends)
    return table


def _row(name: str) -> dict[str, str]:
    path = find(name)
    reported = paper(read(path), path)
    if reported is None:
        return {**dict.fromkeys(_COLUMNS, ""), "note": about(path)}
    cells = {k: f"{mean:.2f} ± {spread:.1f}" for k, (mean, spread) in reported.reported.items()}
    return {**dict.fromkeys(_COLUMNS, ""), **cells, "note": reported.note}
