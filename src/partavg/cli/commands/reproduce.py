"""`partavg reproduce`, as it is called."""

from typing import Any

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg reproduce table1 --rows cifar10 --seeds 3
  partavg reproduce table3 --rows femnist,imdb-alpha1 --scale 0.05
  partavg reproduce table1/cifar10-interval8 --out runs/cell --resume
"""


@click.command(epilog=EXAMPLES)
@click.argument("target", metavar="TABLE", shell_complete=options.tables_and_recipes)
@click.option("--rows", metavar="WORDS", help="Only rows with one of these words in their name.")
@options.seeds
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="A trial: this share of the budget and of the data. Every output then says so.",
)
@options.settings
@options.data
@options.out
@options.resume
@options.force
def reproduce(**given: Any) -> None:
    """Run the recipes of a TABLE of the paper (table1 to table5, or all) or one recipe.

    They run one after another, each scheme with each seed; then what the paper reports is printed
    beside what was measured, with the sign of partial − periodic.
    """
    from partavg.cli.reproduce import reproduce

    reproduce(**given)
