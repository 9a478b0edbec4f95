"""`partavg split`, as it is called."""

from pathlib import Path
from typing import Any

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg split --plot
  partavg split recipe.toml --plot uneven.svg --set split.alpha=0.1
  partavg split recipe.toml --save split.npz
  partavg run recipe.toml --set split.name=saved --set split.path=split.npz
"""


@click.command(epilog=EXAMPLES)
@options.recipe_or_demo
@click.option(
    "--plot",
    is_flag=False,
    flag_value=Path("split.svg"),
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw it, to split.svg or the file named.",
)
@click.option(
    "--save",
    "kept",
    is_flag=False,
    flag_value=Path("split.npz"),
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep it, in split.npz or the file named.",
)
@options.settings
@options.data
def split(**given: Any) -> None:
    """Show which samples the workers of RECIPE own: how many, of which classes.

    `--plot` draws the number of samples of each class that each worker owns; `--save` keeps the
    split for other recipes.
    """
    from partavg.cli.split import split

    split(**given)
