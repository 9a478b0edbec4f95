"""`partavg data`."""

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
        _show(data)


def _show(given: Path | None) -> None:
    from partavg.cli import output
    from partavg.cli.data_table import data_table
    from partavg.data.root import root as data_root

    with output.bad_input():
        root = data_root(given)
        console = output.console()
        console.print(data_table(root))
        console.print(f"root: {root}", highlight=False, markup=False, soft_wrap=True)


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
    import shlex

    from partavg.cli import output
    from partavg.cli.transfer import transfer
    from partavg.data.fetch import fetch as fetch_files
    from partavg.data.fetch import find_source
    from partavg.data.root import root as data_root

    root = data_root(data or group)
    with output.bad_input(), output.plain_warnings():
        for name in names:
            find_source(name)  # a wrong name is found before anything is downloaded
        try:
            with transfer(output.console()) as shown:
                for name in names:
                    new = fetch_files(name, root, shown.update)
                    shown.say(f"{name} is {'now' if new else 'already'} in {root}")
        except KeyboardInterrupt:
            again = shlex.join(["partavg", "data", "fetch", *names, "--data", str(root)])
            output.fail(f"stopped; continue with: {again}", output.INTERRUPTED)
