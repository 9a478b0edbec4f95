"""`partavg flower`, as it is called."""

from pathlib import Path

import click

EXAMPLES = """\b
Examples:
  partavg flower new fashion
"""


@click.group(epilog=EXAMPLES)
def flower() -> None:
    """Train with real clients over a real network, by Flower (see docs/flower.md)."""


@flower.command(epilog=EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def new(folder: Path) -> None:
    """Write a Flower app into DIR: federated Fashion-MNIST, to run as it is and to edit."""
    from partavg.cli.flower import new

    new(folder)
