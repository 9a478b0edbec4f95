"""`partavg flower`."""

from pathlib import Path

import click

from partavg.cli import drive


def new(folder: Path) -> None:
    """Write a Flower app into a folder."""
    with drive.bad_input():
        try:
            from partavg.flower.new import write_app
        except ModuleNotFoundError as error:
            raise ValueError(str(error)) from None
        for path in write_app(folder):
            click.echo(f"wrote {path}")
    click.echo(f"edit them, then: flwr run {folder}")
