"""`partavg report`, as it is called."""

from pathlib import Path
from typing import Any

import click

EXAMPLES = """\b
Examples:
  partavg report runs/compare-1 --open
  partavg report runs/simulated runs/federated --out both.html
  partavg report runs/compare-1 --csv table.csv --latex table.tex
  partavg report runs/compare-1 --figures figures --format svg
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
@click.option("--open", "opens", is_flag=True, help="Show the page in a browser.")
@click.option(
    "--csv",
    "table",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the numbers of the table, too.",
)
@click.option(
    "--latex",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the table for LaTeX (booktabs), too.",
)
@click.option(
    "--figures",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Draw the charts for a paper, too: a file each. Needs partavg[figures].",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["pdf", "svg"]),
    default="pdf",
    show_default=True,
    help="Of the figures.",
)
def report(**given: Any) -> None:
    """Show runs next to each other on one page that works offline.

    RUN is a run folder, or a folder that contains run folders: simulated or federated ones,
    finished or not. Folders NAME-seed0, NAME-seed1, … of one comparison are shown as one scheme,
    with mean and deviation.
    """
    from partavg.cli.report import report

    report(**given)
