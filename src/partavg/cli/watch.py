"""`partavg watch`."""

import webbrowser
from pathlib import Path

import click

from partavg.cli import drive
from partavg.report.runs import find
from partavg.report.watch import HOST, Watcher, server


def watch(folder: Path, port: int, every: float, opens: bool) -> None:
    """Follow runs while they train, until Ctrl-C."""
    with drive.bad_input():
        served = server(Watcher(folder, every).page, port)
        count = len(find(folder))
    address = f"http://{HOST}:{served.server_port}/"
    what = f"{count} run{'s' if count != 1 else ''}" if count else "no runs yet, waiting for some"
    click.echo(f"watching {folder} ({what}): {address}  (Ctrl-C to stop)")
    if opens and not webbrowser.open(address):
        click.echo("partavg: no browser was found: open the address yourself", err=True)
    with served:
        try:
            served.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            click.echo("stopped watching")
