"""`partavg data`."""

import shlex
from pathlib import Path

from rich import box
from rich.table import Table

from partavg.cli import drive
from partavg.cli.transfer import transfer
from partavg.data import DATASETS, SOURCES, cache
from partavg.data.fetch import fetch as fetch_files
from partavg.data.fetch import find_source, part_path
from partavg.data.root import root as data_root
from partavg.data.source import Source


def show(given: Path | None) -> None:
    """List the datasets and where they are."""
    with drive.bad_input():
        root = data_root(given)
        console = drive.console()
        console.print(_table(root))
        console.print(f"root: {root}", highlight=False, markup=False, soft_wrap=True)


def fetch(names: tuple[str, ...], given: Path | None) -> None:
    """Download datasets from their official addresses, check and unpack them."""
    root = data_root(given)
    with drive.bad_input(), drive.plain_warnings():
        for name in names:
            find_source(name)  # a wrong name is found before anything is downloaded
        try:
            with transfer(drive.console()) as shown:
                for name in names:
                    new = fetch_files(name, root, shown.update)
                    shown.say(f"{name} is {'now' if new else 'already'} in {root}")
        except KeyboardInterrupt:
            again = shlex.join(["partavg", "data", "fetch", *names, "--data", str(root)])
            drive.fail(f"stopped; continue with: {again}", drive.INTERRUPTED)


def _table(root: Path) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("name", "what", "state"):
        table.add_column(heading, no_wrap=heading == "name")
    table.add_column("on disk", justify="right", no_wrap=True)
    for name in sorted({*DATASETS, *SOURCES}):
        if name in SOURCES:
            source = SOURCES[name]
            size = cache.size(source, root)
            table.add_row(
                name, source.about, _state(source, root), _megabytes(size) if size else ""
            )
        else:
            about = "14,000 of Fashion-MNIST's images"
            table.add_row(name, about, "comes with the package", "")
    return table


def _state(source: Source, root: Path) -> str:
    state = cache.state(source, root)
    if state == "incomplete":
        return f"lacks {source.lacks(root)}"
    if state == "damaged":
        return "damaged: fetch it again"
    parts = [part_path(download, root) for download in source.downloads]
    sizes = [part.stat().st_size for part in parts if part.exists()]
    if state == "not there" and sizes:
        total = sum(download.size for download in source.downloads)
        return f"{_megabytes(sum(sizes))} of {_megabytes(total)} fetched"
    return state


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
