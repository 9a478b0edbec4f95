"""`partavg watch`."""

from pathlib import Path

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
def watch(folder: Path, port: int, every: float, opens: bool) -> None:
    """Follow the runs in DIR while they train: the page of `partavg report`, refreshing by itself.

    The page is served to this machine only. Ctrl-C ends it; the runs go on.
    """
    import webbrowser

    from partavg.cli import output
    from partavg.report.runs import find
    from partavg.report.watch import HOST, Watcher, server

    with output.bad_input():
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
