"""`partavg report`, as it is called."""

from pathlib import Path
from typing import Any

import click

EXAMPLES = """\b
Examples:
  partavg report runs/simulated runs/federated
"""


@click.command(epilog=EXAMPLES)
@click.argument(
    "folders",
    metavar="RUN...",
    nargs=-1,
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The page to write.",
)
def report(**given: Any) -> None:
    """Show finished runs next to each other on one page: simulated ones and federated ones."""
    from partavg.cli.report import report

    report(**given)
