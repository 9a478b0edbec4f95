"""`partavg theory`, as it is called."""

from pathlib import Path
from typing import Any

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg theory
  partavg theory --steps 100 --set averaging.interval=4
  partavg theory recipe.toml --scheme periodic --json theory.json
"""


@click.command(epilog=EXAMPLES)
@options.recipe_or_demo
@options.scheme
@click.option("--steps", default=0, show_default=True, help="Train so many steps before measuring.")
@click.option(
    "--workers",
    "roughness_of",
    default=4,
    show_default=True,
    help="Measure the smoothness of so many workers' losses; it takes the longest.",
)
@click.option(
    "--method",
    type=click.Choice(["auto", "hessian", "difference"]),
    default="auto",
    show_default=True,
    help="Measure smoothness by the Hessian, or by differences of gradients, which see kinks too.",
)
@click.option(
    "--json",
    "kept",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all numbers, those of every part too, to this file.",
)
@options.settings
@options.data
def theory(**given: Any) -> None:
    """Say what the paper's theorems promise for RECIPE, and whether its learning rate is allowed.

    Smoothness, gradient noise and the difference between workers are measured where training
    starts, or after some steps. From them come the largest learning rate that the theorem for IID
    or non-IID data allows, the terms of its bound, and the longest interval at this learning rate.
    """
    from partavg.cli.theory import theory

    theory(**given)
