"""`partavg recipes`."""

import click
from rich import box
from rich.table import Table

from partavg import recipe as recipes
from partavg.cli import drive

EXAMPLES = """\b
Examples:
  partavg recipes
  partavg recipes table3
  partavg recipes table1/cifar10-interval8 > mine.toml
"""


@click.command(epilog=EXAMPLES)
@click.argument("name", required=False)
def recipe_command(name: str | None) -> None:
    """List the recipes that come with the package, with what the paper reports for them.

    With the NAME of a table, only those of that table; with the name of a recipe, its text, to
    edit and run.
    """
    known = recipes.names()
    tables = {recipe.partition("/")[0] for recipe in known if "/" in recipe}
    if name is None or name in tables:
        drive.console().print(_table([r for r in known if name in (None, r.partition("/")[0])]))
        return
    with drive.bad_input():
        click.echo(recipes.find(name).read_text(encoding="utf-8"), nl=False)


def _table(names: list[str]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        caption="Accuracy in % as the paper reports it; run one with `partavg run NAME` or "
        "`partavg compare NAME`, a table with `partavg reproduce TABLE`.",
        caption_justify="left",
    )
    table.add_column("recipe", no_wrap=True)
    for heading in ("periodic", "partial", "synchronous"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("note")
    last = ""
    for name in names:
        group = name.partition("/")[0]
        if last and group != last:
            table.add_section()
        last = group
        paper = recipes.load(name).paper
        cells = [
            f"{paper.reported[scheme][0]:.2f} ± {paper.reported[scheme][1]:.1f}"
            if paper and scheme in paper.reported
            else ""
            for scheme in ("periodic", "partial", "synchronous")
        ]
        table.add_row(name, *cells, paper.note if paper else "what `partavg compare` runs")
    return table
