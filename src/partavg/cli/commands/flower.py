"""`partavg flower`."""

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
    from partavg.cli import output

    with output.bad_input():
        try:
            from partavg.flower.new import write_app
        except ModuleNotFoundError as error:
            raise ValueError(str(error)) from None
        for path in write_app(folder):
            click.echo(f"wrote {path}")
    click.echo(f"edit them, then: flwr run {folder}")
