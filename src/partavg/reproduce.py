"""Reproduction of tables: what the paper reports against what a run here measures, and studies."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from partavg import recipe as recipes
from partavg.comparison import PlannedRun, planned_runs, results, schemes_of
from partavg.folder import write_text
from partavg.metrics.metric import Metric
from partavg.metrics.table import METRICS
from partavg.recipe import Recipe
from partavg.verdict import main_metric

STUDIES = ("lm",)
"""Folders of recipes that are no tables of the paper, and that nobody reported numbers of."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One scheme of one row: the accuracy the paper reports, in %, and what was measured."""

    scheme: str
    reported: tuple[float, float] | None
    measured: tuple[float, ...]
    metric: Metric = METRICS["accuracy"]

    @property
    def reported_text(self) -> str:
        """What the paper says."""
        return f"{self.reported[0]:.2f} ± {self.reported[1]:.1f}" if self.reported else "–"

    @property
    def measured_text(self) -> str:
        """What was found here."""
        if not self.measured:
            return "–"
        form = self.metric.form
        spread = f" ± {stdev(self.measured):{form}}" if len(self.measured) > 1 else ""
        return f"{mean(self.measured):{form}}{spread}"


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table: a recipe and its runs."""

    recipe: Recipe
    entries: tuple[PlannedRun, ...]

    def cells(self) -> list[Cell]:
        """Its schemes, as far as their runs are finished."""
        reported = self.recipe.paper.reported if self.recipe.paper else {}
        found = results(self.entries)
        metric = main_metric([result for result in found if result.summaries])
        metric = METRICS["accuracy"] if reported or metric is None else metric
        return [
            Cell(
                result.scheme,
                reported.get(result.scheme),
                tuple(result.values(metric.key, metric.scale)),
                metric,
            )
            for result in found
        ]

    def sign(self) -> str:
        """The lead of partial over periodic averaging, reported and measured, and if it agrees."""
        cells = {cell.scheme: cell for cell in self.cells()}
        if not {"periodic", "partial"} <= cells.keys():
            return ""
        partial, periodic = cells["partial"], cells["periodic"]
        reported = (
            partial.reported[0] - periodic.reported[0]
            if partial.reported and periodic.reported
            else None
        )
        said = "–" if reported is None else f"{reported:+.2f}"
        if not (partial.measured and periodic.measured):
            return f"{said} / –"
        if len(partial.measured) != len(periodic.measured):
            return f"{said} / –, not all seeds finished"
        measured = mean(partial.measured) - mean(periodic.measured)
        shown = f"{measured:+{partial.metric.form}}"
        if not float(shown):
            return f"{said} / {shown[1:]}"
        if reported is None:
            return f"{said} / {shown}"
        agrees = "same sign" if reported * measured > 0 else "other sign"
        return f"{said} / {shown}, {agrees}"


def select(target: str, words: str | None) -> list[str]:
    """The names of the recipes of a table or study, or one; only those with one of the words."""
    known = [
        name
        for name in recipes.names()
        if name.startswith("table") or (name.partition("/")[0] in STUDIES and "/" in name)
    ]
    tables = list(dict.fromkeys(name.partition("/")[0] for name in known))
    paper = [name for name in known if name.startswith("table")]
    chosen = (
        paper
        if target == "all"
        else [name for name in known if target in (name, name.partition("/")[0])]
    )
    if not chosen:
        raise ValueError(
            f"{target!r} is neither a table nor a recipe: use {', '.join(tables)}, all, "
            f"or a name that `partavg recipes` lists"
        )
    wanted = [word.strip() for word in (words or "").split(",") if word.strip()]
    kept = [name for name in chosen if not wanted or any(_has(name, word) for word in wanted)]
    if not kept:
        rows = ", ".join(name.partition("/")[2] for name in chosen)
        raise ValueError(f"no row of {target} has {words!r} in its name: there are {rows}")
    return kept


def _has(name: str, word: str) -> bool:
    """Whether a row is called so, or some of its parts are: cifar10 is not cifar100."""
    return f"-{word}-" in f"-{name.partition('/')[2]}-"


def planned(
    names: Sequence[str], overrides: Sequence[str], seeds: int, out: Path
) -> list[TableRow]:
    """The rows to run, each with its schemes and seeds."""
    found = [recipes.load(name, overrides) for name in names]
    return [
        TableRow(one, tuple(planned_runs(one, schemes_of(one), seeds, out / one.name)))
        for one in found
    ]


_COLUMNS = ("recipe", "scheme", "reported", "reported_deviation", "measured", "measured_deviation",
            "seeds", "scale", "metric")  # fmt: skip


def read_csv(path: Path) -> list[list[str]]:
    """The cells that were written before, a list of texts each; a ValueError if we did not."""
    if not path.exists():
        return []
    try:
        head, *cells = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
    except (ValueError, csv.Error):
        head, cells = [], []
    if tuple(head) == _COLUMNS[:-1]:  # of 0.2, where all was accuracy
        head, cells = list(_COLUMNS), [[*cell, "accuracy"] for cell in cells]
    if tuple(head) != _COLUMNS or any(len(cell) != len(_COLUMNS) for cell in cells):
        raise ValueError(
            f"{path} is no table of results of partavg, and is not overwritten: move it away, or "
            f"use another --out"
        )
    return cells


def write_csv(path: Path, rows: Sequence[TableRow]) -> None:
    """Write every finished cell: recipe, scheme, reported and measured, accuracy in %.

    Cells of other recipes that were written before stay.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    ours = {row.recipe.name for row in rows}
    table.writerows(cell for cell in read_csv(path) if cell[0] not in ours)
    for row in rows:
        scale = row.entries[0].config.training.scale
        for cell in row.cells():
            if cell.measured:
                reported = cell.reported or ("", "")
                seeds = len(cell.measured)
                deviation = f"{stdev(cell.measured):.4f}" if seeds > 1 else ""
                measured = (f"{mean(cell.measured):.4f}", deviation)
                where = row.recipe.name, cell.scheme
                table.writerow((*where, *reported, *measured, seeds, scale, cell.metric.key))
    write_text(path, text.getvalue())
