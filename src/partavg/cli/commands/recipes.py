"""`partavg recipes`."""

import click

from partavg.cli import options
from partavg.recipes import names

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

    With the NAME of a table, or of a folder like lm/, only those in it; with the name of a recipe,
    its text, to edit and run.
    """
    from partavg.cli import output
    from partavg.cli.recipes_table import recipes_tables
    from partavg.recipes.files import find

    known = names()
    tables = {recipe.partition("/")[0] for recipe in known if "/" in recipe}
    with output.bad_input():
        folder = name and name.removesuffix("/")
        if name is None or (folder in tables and name not in known):
            listed = [recipe for recipe in known if folder in (None, recipe.partition("/")[0])]
            output.console().print(*recipes_tables(listed), sep="\n")
        else:
            click.echo(find(name).read_text(encoding="utf-8"), nl=False)
