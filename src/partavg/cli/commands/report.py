"""`partavg report`."""

from pathlib import Path

import click

from partavg.cli import options

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
def report(
    folders: tuple[Path, ...],
    out: Path,
    opens: bool,
    table: Path | None,
    latex: Path | None,
    figures: Path | None,
    kind: str,
) -> None:
    """Show runs next to each other on one page that works offline.

    RUN is a run folder, or a folder that contains run folders: simulated or federated ones,
    finished or not. Folders NAME-seed0, NAME-seed1, … of one comparison are shown as one scheme,
    with mean and deviation.
    """
    import webbrowser

    from partavg.cli import output
    from partavg.folder import write_text
    from partavg.report.page import write_page
    from partavg.report.runs import gather, grouped
    from partavg.report.table import to_csv, to_latex

    with output.bad_input():
        for path, suffix in ((out, ".html"), (table, ".csv"), (latex, ".tex")):
            options.check_suffix(path, suffix)
        runs = gather(folders)
        groups = grouped(runs)
        if figures:
            from partavg.report.figures import write_figures

            drawn = write_figures(figures, groups, kind)
            click.echo(f"figures: {', '.join(map(str, drawn))}")
        for path, text in ((table, to_csv), (latex, to_latex)):
            if path:
                write_text(path, text(groups))
                click.echo(f"table: {path}")
        write_page(out, runs)
    click.echo(f"report: {out}")
    if opens and not webbrowser.open(out.resolve().as_uri()):
        click.echo("partavg: no browser was found: open the page yourself", err=True)
