"""`partavg recipes`, as it is called."""

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg recipes
  partavg recipes table3
  partavg recipes table1/cifar10-interval8 > mine.toml
"""


@click.command(epilog=EXAMPLES)
@click.argument("name", required=False, shell_complete=options.tables_and_recipes)
def recipes(name: str | None) -> None:
    """List the recipes that come with the package, with what the paper reports for them.

    With the NAME of a table, only those of that table; with the name of a recipe, its text, to
    edit and run.
    """
    from partavg.cli.recipes import recipes

    recipes(name)
