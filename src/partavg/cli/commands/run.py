"""`partavg run`, as it is called."""

from typing import Any

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg run recipe.toml
  partavg run recipe.toml --set averaging.interval=8 --set training.seed=1
  partavg run table1/cifar10-interval8 --scheme periodic --data ~/datasets
  partavg run runs/recipe-1/config.toml --out runs/recipe-1 --resume
  torchrun --nproc-per-node 4 -m partavg run recipe.toml
"""


@click.command(epilog=EXAMPLES)
@options.recipe
@options.scheme
@options.settings
@options.data
@options.out
@options.resume
@options.force
def run(**given: Any) -> None:
    """Train what RECIPE describes: a file, or a name that `partavg recipes` lists.

    A recipe of several schemes is trained with partial averaging if no other is named.
    """
    from partavg.cli.run import run

    run(**given)
