"""What `partavg reproduce` found: a table, a page, a file of results."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from partavg import reproduce as reproducing
from partavg.report.page import write_page
from partavg.report.runs import ShownRun, of_entries
from partavg.report.table import TextTable

_HEAD = ("recipe", "scheme", "reported", "measured", "partial − periodic")


def write_row(
    out: Path, row: reproducing.TableRow, planned: Sequence[reproducing.TableRow]
) -> None:
    """The report of a row that may be finished, and the results so far."""
    if all(entry.folder.finished for entry in row.entries):
        write_page(out / row.recipe.name / "report.html", of_entries(row.entries))
    reproducing.write_csv(out / "results.csv", planned)


def scaled(scale: float) -> str:
    """That a trial was run, for every output to say so."""
    return f" (scaled to {scale:g} of budget and data)" if scale != 1 else ""


def table(rows: Sequence[reproducing.TableRow], scale: float) -> Table:
    """What the paper reports beside what was measured."""
    shown = Table(
        box=box.SIMPLE_HEAD,
        title=f"Accuracy of u_K in %{scaled(scale)}",
        caption="partial − periodic: reported / measured",
        title_justify="left",
        caption_justify="left",
    )
    for heading in _HEAD:
        numbers = heading in ("reported", "measured")
        shown.add_column(heading, justify="right" if numbers else "left", no_wrap=True)
    for line in _cells(rows):
        shown.add_row(*line)
    return shown


def page(
    rows: Sequence[reproducing.TableRow], scale: float
) -> tuple[list[ShownRun], list[TextTable]]:
    """All runs of a reproduction, and the table, for one page."""
    runs = [
        run
        for row in rows
        for run in of_entries(row.entries, f"{row.recipe.name} " if len(rows) > 1 else "")
    ]
    caption = f"Against the paper: accuracy of u_K in %{scaled(scale)}"
    return runs, [TextTable(caption, _HEAD, _cells(rows))]


def _cells(rows: Sequence[reproducing.TableRow]) -> list[tuple[str, ...]]:
    """A line per scheme; the sign of a recipe stands at its first."""
    return [
        (row.recipe.name if number == 0 else "", cell.scheme, cell.reported_text,
         cell.measured_text, row.sign() if number == 0 else "")
        for row in rows
        for number, cell in enumerate(row.cells())
    ]  # fmt: skip
