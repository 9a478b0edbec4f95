"""`partavg reproduce`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich import box
from rich.table import Table

from partavg import reproduce as reproducing
from partavg.build import check
from partavg.cli import drive, options
from partavg.cli.job import job
from partavg.config import Component, create
from partavg.data.dataset import Dataset
from partavg.data.root import root
from partavg.report.page import write_page
from partavg.report.runs import ShownRun, of_entries
from partavg.report.table import TextTable
from partavg.sinks.progress import display


def reproduce(
    target: str,
    rows: str | None,
    seeds: int,
    scale: float,
    overrides: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    resume: bool,
    force: bool,
) -> None:
    """Run recipes of the paper's tables and print what it reports beside what was measured."""
    console = drive.console()
    # What is left of a run is its summary: the states of 128 large models would fill a disk.
    settings = ["checkpoints.final=false", *overrides]
    settings += [f"training.scale={scale}"] if scale != 1 else []
    store = _Datasets(root(data))
    with job() as this:
        with drive.bad_input(this.team), drive.plain_warnings():
            options.check_resume(out, resume=resume, force=force)
            names = reproducing.select(target, rows)
            out = this.out(out, f"reproduce-{target.replace('/', '-')}")
            planned = reproducing.planned(names, settings, seeds, out)
            for number, row in enumerate(planned):
                for entry in row.entries:
                    check(entry.config, store(entry.config.data))
                entries = this.continued(row.entries, resume=resume, force=force)
                planned[number] = replace(row, entries=tuple(entries))
        scale = planned[0].entries[0].config.training.scale
        again = this.command("reproduce", target, *(["--rows", rows] if rows else []))
        again += ["--seeds", str(seeds), *(["--scale", str(scale)] if scale != 1 else [])]
        again += [f"--set={override}" for override in overrides]
        again += [*(["--data", str(data)] if data else []), "--out", str(out), "--resume"]
        start = partial(this.start, resume=resume, force=force)
        diverged: list[str] = []
        with (
            drive.early_ends(again),
            drive.plain_warnings(),
            drive.stop_request() as request,
            display(console) as shown,
        ):
            for row in planned:
                shown.say(f"{row.recipe.name}{_scaled(scale)}")
                samples = store(row.entries[0].config.data)
                diverged += drive.train_all(row.entries, samples, start, shown, request)
                if drive.speaks():
                    _write(out, row, planned)
        if drive.speaks():
            console.print(_table(planned, scale))
            with drive.bad_input():
                report = write_page(out / "report.html", *_whole(planned, scale))
            console.print(f"results: {out / 'results.csv'}", highlight=False, soft_wrap=True)
            console.print(f"run folders and a report of each row: {out}\nreport: {report}",
                          highlight=False, soft_wrap=True)  # fmt: skip
        if diverged:
            drive.fail("; ".join(diverged), drive.DIVERGED)


def _write(out: Path, row: reproducing.Row, planned: Sequence[reproducing.Row]) -> None:
    """The report of a row that may be finished, and the results so far."""
    if all(entry.folder.finished for entry in row.entries):
        write_page(out / row.recipe.name / "report.html", of_entries(row.entries))
    reproducing.write_csv(out / "results.csv", planned)


class _Datasets:
    """Loads datasets, and keeps the last one: rows of one dataset follow each other."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._last: tuple[Component, Dataset] | None = None

    def __call__(self, wanted: Component) -> Dataset:
        if self._last is None or self._last[0] != wanted:
            self._last = wanted, create("data", wanted, self._root)
        return self._last[1]


def _scaled(scale: float) -> str:
    return f" (scaled to {scale:g} of budget and data)" if scale != 1 else ""


_HEAD = ("recipe", "scheme", "reported", "measured", "partial − periodic")


def _cells(rows: Sequence[reproducing.Row]) -> list[tuple[str, ...]]:
    """A line per scheme; the sign of a recipe stands at its first."""
    return [
        (row.recipe.name if number == 0 else "", cell.scheme, cell.reported_text,
         cell.measured_text, row.sign() if number == 0 else "")
        for row in rows
        for number, cell in enumerate(row.cells())
    ]  # fmt: skip


def _table(rows: Sequence[reproducing.Row], scale: float) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Accuracy of u_K in %{_scaled(scale)}",
        caption="partial − periodic: reported / measured",
        title_justify="left",
        caption_justify="left",
    )
    for heading in _HEAD:
        numbers = heading in ("reported", "measured")
        table.add_column(heading, justify="right" if numbers else "left", no_wrap=True)
    for line in _cells(rows):
        table.add_row(*line)
    return table


def _whole(rows: Sequence[reproducing.Row], scale: float) -> tuple[list[ShownRun], list[TextTable]]:
    """All runs of a reproduction, and the table above, for one page."""
    runs = [
        run
        for row in rows
        for run in of_entries(row.entries, f"{row.recipe.name} " if len(rows) > 1 else "")
    ]
    caption = f"Against the paper: accuracy of u_K in %{_scaled(scale)}"
    return runs, [TextTable(caption, _HEAD, _cells(rows))]
