"""`partavg compare`, as it is called."""

from typing import Any

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg compare
  partavg compare --seeds 3
  partavg compare recipe.toml --schemes periodic,4-parts,partial --set averaging.interval=8
"""


@click.command(epilog=EXAMPLES)
@options.recipe_or_demo
@click.option(
    "--schemes",
    help="Which schemes, separated by commas; 4-parts averages in 4 parts.  "
    "[default: those of the recipe, or periodic,partial,synchronous]",
)
@options.seeds
@options.settings
@options.data
@options.out
@options.resume
@options.force
def compare(**given: Any) -> None:
    """Train the same task from the same start under several averaging schemes.

    RECIPE is a file, or a name that `partavg recipes` lists. Without it the demo is run: 64 workers
    with uneven shares of a subset of Fashion-MNIST that comes with the package.
    """
    from partavg.cli.compare import compare

    compare(**given)
