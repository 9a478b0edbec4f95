"""`partavg report`."""

from pathlib import Path

import click

from partavg.cli import drive, options
from partavg.folder import RunFolder
from partavg.report.page import write_gathered


def report(folders: tuple[Path, ...], out: Path) -> None:
    """Show finished runs next to each other on one page: simulated ones and federated ones."""
    with drive.bad_input():
        options.check_suffix(out, ".html")
        runs = {path.resolve().name: RunFolder(path) for path in folders}
        if len(runs) < len(folders):
            raise ValueError("two runs have folders of one name: rename one of them")
        for path in folders:
            if not RunFolder(path).finished:
                raise ValueError(f"{path} holds no finished run: name run folders with a summary")
        write_gathered(out, runs)
    click.echo(f"report: {out}")
