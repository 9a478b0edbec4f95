"""`partavg report`."""

import webbrowser
from pathlib import Path

import click

from partavg.cli import drive, options
from partavg.folder import write_text
from partavg.report.page import write_page
from partavg.report.runs import gather, grouped
from partavg.report.table import to_csv, to_latex


def report(
    folders: tuple[Path, ...],
    out: Path,
    opens: bool,
    table: Path | None,
    latex: Path | None,
    figures: Path | None,
    kind: str,
) -> None:
    """Show runs next to each other on one page that works offline."""
    with drive.bad_input():
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
