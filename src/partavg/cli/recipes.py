"""`partavg recipes`."""

from itertools import pairwise

import click
from rich import box
from rich.table import Table

from partavg import recipe as files
from partavg.cli import drive

COLUMNS = ("periodic", "partial", "synchronous", "note")


def recipes(name: str | None) -> None:
    """List the recipes that come with the package, or print one."""
    known = files.names()
    tables = {recipe.partition("/")[0] for recipe in known if "/" in recipe}
    if name is None or name in tables:
        drive.console().print(_table([r for r in known if name in (None, r.partition("/")[0])]))
        return
    with drive.bad_input():
        click.echo(files.find(name).read_text(encoding="utf-8"), nl=False)


def _table(names: list[str]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        caption="Accuracy in % as the paper reports it; run one with `partavg run NAME` or "
        "`partavg compare NAME`, a table with `partavg reproduce TABLE`.",
        caption_justify="left",
    )
    rows = {name: _row(files.load(name)) for name in names}
    columns = [column for column in COLUMNS if any(row[column] for row in rows.values())]
    table.add_column("recipe", no_wrap=True)
    for column in columns:
        note = column == "note"
        table.add_column(column, justify="left" if note else "right", no_wrap=not note)
    for name, follower in pairwise([*names, ""]):
        ends = name.partition("/")[0] != follower.partition("/")[0]
        table.add_row(name, *(rows[name][column] for column in columns), end_section=ends)
    return table


def _row(recipe: files.Recipe) -> dict[str, str]:
    paper = recipe.paper
    if paper is None:
        return {**dict.fromkeys(COLUMNS, ""), "note": recipe.about}
    reported = {k: f"{mean:.2f} ± {spread:.1f}" for k, (mean, spread) in paper.reported.items()}
    return {**dict.fromkeys(COLUMNS, ""), **reported, "note": paper.note}
