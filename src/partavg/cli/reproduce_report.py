"""What `partavg reproduce` found: a table, a page, a file of results."""

from collections.abc import Sequence
from pathlib import Path

from partavg import reproduce as reproducing
from partavg.cli.fitted import Fitted
from partavg.report.page import write_page
from partavg.report.runs import ShownRun, find, load, of_entries
from partavg.report.table import TextTable
from partavg.sentences import opening

RESULTS = "results.csv"
"""The file with all cells of a reproduction."""

_HEAD = ("recipe", "scheme", "reported", "measured", "partial − periodic")


def write_row(
    out: Path, row: reproducing.TableRow, planned: Sequence[reproducing.TableRow]
) -> None:
    """The report of a row that may be finished, and the results so far."""
    if all(entry.folder.finished for entry in row.entries):
        write_page(out / row.recipe.name / "report.html", of_entries(row.entries))
    reproducing.write_csv(out / RESULTS, planned)


def scaled(scale: float) -> str:
    """That a trial was run, for every output to say so."""
    return f" (scaled to {scale:g} of budget and data)" if scale != 1 else ""


def table(rows: Sequence[reproducing.TableRow], scale: float) -> Fitted:
    """What the paper reports beside what was measured."""
    return Fitted(
        _HEAD,
        _cells(rows),
        names=2,
        words=_HEAD[-1:],
        title=f"{_measured(rows)} of u_K{scaled(scale)}",
        notes="partial − periodic: reported / measured",
    )


def _measured(rows: Sequence[reproducing.TableRow]) -> str:
    """What the numbers of a table are."""
    metrics = dict.fromkeys(cell.metric for row in rows for cell in row.cells())
    names = (f"{one.called}{' in %' if one.unit == '%' else ''}" for one in metrics)
    return opening(", ".join(names))


def page(
    rows: Sequence[reproducing.TableRow], scale: float, out: Path
) -> tuple[list[ShownRun], list[TextTable]]:
    """All runs of a reproduction, and the table, for one page; those of before come last."""
    ours = {entry.folder.path.resolve() for row in rows for entry in row.entries}
    before = [path for path in find(out) if path not in ours]
    alone = len(rows) == 1 and not before
    runs = [
        run
        for row in rows
        for run in of_entries(row.entries, "" if alone else f"{row.recipe.name} ")
    ]
    runs += [_earlier(path, out) for path in before]
    caption = f"{_measured(rows)} of u_K{scaled(scale)}, reported and measured"
    cells = [*_cells(rows), *_earlier_cells(out / RESULTS, rows)]
    return runs, [TextTable(caption, _HEAD, cells)]


def _earlier(path: Path, out: Path) -> ShownRun:
    """A run that another reproduction left in the folder."""
    recipe = path.parent.relative_to(out.resolve()).as_posix()
    scheme, _, seed = path.name.rpartition("-seed")
    group = f"{recipe} {scheme or path.name}"
    return load(path, f"{group}, seed {seed}" if scheme else group, group)


def _earlier_cells(path: Path, rows: Sequence[reproducing.TableRow]) -> list[tuple[str, ...]]:
    """What another reproduction found, as lines of the table."""
    ours = {row.recipe.name for row in rows}
    return [
        (recipe, scheme, _with_deviation(*numbers[:2]), _with_deviation(*numbers[2:4]), "")
        for recipe, scheme, *numbers in reproducing.read_csv(path)
        if recipe not in ours
    ]


def _with_deviation(value: str, deviation: str) -> str:
    return f"{value} ± {deviation}" if deviation else value or "–"


def _cells(rows: Sequence[reproducing.TableRow]) -> list[tuple[str, ...]]:
    """A line per scheme; the sign of a recipe stands at its first."""
    return [
        (row.recipe.name if number == 0 else "", cell.scheme, cell.reported_text,
         cell.measured_text, row.sign() if number == 0 else "")
        for row in rows
        for number, cell in enumerate(row.cells())
    ]  # fmt: skip
