"""`partavg report`."""

from pathlib import Path

import click

from partavg.cli import options

EXAMPLES = """\b
Examples:
  partavg report runs/compare-1 --open
  partavg report runs/simulated runs/federated --out both.html
  partavg report runs/compare-1 --csv table.csv --latex table.tex --columns accuracy,bytes
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
    help="The page to write.  [default: report.html, in RUN if there is one only]",
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
@click.option(
    "--columns",
    metavar="KEYS",
    help="Of the LaTeX table, separated by commas, by heading or as --csv calls them.  "
    "[default: all but seconds]",
)
@options.overwrite
def report(
    folders: tuple[Path, ...],
    out: Path | None,
    opens: bool,
    table: Path | None,
    latex: Path | None,
    figures: Path | None,
    kind: str,
    columns: str | None,
    force: bool,
) -> None:
    """Show runs next to each other on one page that works offline.

    RUN is a run folder, or a folder that contains run folders: simulated or federated ones,
    finished or not. Folders NAME-seed0, NAME-seed1, … of one comparison are shown as one scheme,
    with mean and deviation. Of a sweep its tests are shown, whose page is in its folder `test`.
    """
    import webbrowser

    from partavg.cli import output
    from partavg.folder import write_text
    from partavg.outputs import check_page
    from partavg.report.latex import to_latex
    from partavg.report.page import write_page
    from partavg.report.runs import gather, grouped
    from partavg.report.table import to_csv
    from partavg.sweeps.place import tests_of

    folders = tuple(map(tests_of, folders))
    out = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    with output.bad_input():
        for path, suffix in ((table, ".csv"), (latex, ".tex")):
            options.check_file(path, suffix, force=force)
        options.check_file(out, ".html", force=True)
        check_page(out, force=force, remedy="name another --out, or use --force")
        if columns and not latex:
            raise ValueError("--columns is for the table of --latex: name its file, too")
        runs = gather(folders)
        groups = grouped(runs)
        wanted = _keys(columns) if columns else None
        written = {table: to_csv(groups)} if table else {}
        written |= {latex: to_latex(groups, wanted)} if latex else {}
        if figures:
            from partavg.report.figures import write_figures

            drawn = write_figures(figures, groups, kind, force=force)
            click.echo(f"figures: {', '.join(map(str, drawn))}")
        for path, text in written.items():
            write_text(path, text)
            click.echo(f"table: {path}")
        write_page(out, runs)
    click.echo(f"report: {out}")
    if opens and not webbrowser.open(out.resolve().as_uri()):
        click.echo("partavg: no browser was found: open the page yourself", err=True)


def _keys(columns: str) -> list[str]:
    return [key.strip() for key in columns.split(",") if key.strip()]
