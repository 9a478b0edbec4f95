"""The table of datasets that `partavg data` prints."""

import inspect
from pathlib import Path

from rich import box
from rich.table import Table

from partavg.data import DATASETS, SOURCES, cache
from partavg.data.fetch import part_path
from partavg.data.source import Source


def data_table(root: Path) -> Table:
    """What each dataset is, and what of it is under the root."""
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
            about = (inspect.getdoc(DATASETS[name]) or "").partition("\n")[0].rstrip(".")
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
