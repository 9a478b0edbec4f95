"""`partavg data`, as it is called."""

from pathlib import Path

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg data
  partavg data --data /datasets
"""

FETCH_EXAMPLES = """\b
Examples:
  partavg data fetch cifar10
  partavg data fetch cifar100 svhn --data /datasets
"""


@click.group(invoke_without_command=True, epilog=EXAMPLES)
@options.data
@click.pass_context
def data(context: click.Context, data: Path | None) -> None:
    """List the datasets and where they are; `fetch` downloads them."""
    context.obj = data
    if context.invoked_subcommand is None:
        from partavg.cli.data import show

        show(data)


@data.command(epilog=FETCH_EXAMPLES)
@click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, shell_complete=options.fetchable
)
@options.data
@click.pass_obj
def fetch(group: Path | None, names: tuple[str, ...], data: Path | None) -> None:
    """Download datasets from their official addresses, check and unpack them.

    A download that was stopped goes on where it ended.
    """
    from partavg.cli.data import fetch

    fetch(names, data or group)
