"""`partavg watch`, as it is called."""

from pathlib import Path
from typing import Any

import click

EXAMPLES = """\b
Examples:
  partavg watch runs
  partavg watch runs/compare-1 --port 0 --open
"""


@click.command(epilog=EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8642,
    show_default=True,
    help="Where to serve the page on this machine; 0 takes any port that is free.",
)
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=3.0,
    show_default=True,
    help="Seconds after which the page looks for news.",
)
@click.option("--open", "opens", is_flag=True, help="Show the page in a browser.")
def watch(**given: Any) -> None:
    """Follow the runs in DIR while they train: the page of `partavg report`, refreshing by itself.

    The page is served to this machine only. Ctrl-C ends it; the runs go on.
    """
    from partavg.cli.watch import watch

    watch(**given)
