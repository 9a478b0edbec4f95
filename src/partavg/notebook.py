"""What runs left, and progress, as a notebook shows them: tables, figures, bars in place.

All of it works elsewhere, too: a table prints as text, progress is a bar or a line.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from partavg.cli import output
from partavg.cli.comparison_table import comparison_table
from partavg.comparison import Result, StartedRun, results
from partavg.core.arguments import check_kind
from partavg.folder import RunFolder
from partavg.metrics.metric import Metric, Row
from partavg.recipes.files import read
from partavg.report import palette
from partavg.report.chart import draw, swatch
from partavg.report.charts import Chart, Line
from partavg.report.curves import Curve
from partavg.report.runs import grouped, of_entries
from partavg.report.table import comparison
from partavg.sentences import shown
from partavg.sinks.progress import Display, Status, display, ending
from partavg.sinks.sink import RunInfo
from partavg.verdict import verdict

_UPDATE_EVERY = 0.5  # seconds between two pictures of a run that goes on
_MOST_ROWS = 10  # of a table that is shown
_RESULTS = ("accuracy", "clients_accuracy", "test_loss")
"""Of these the first that was measured is drawn."""
_DARK = '[data-jp-theme-light="false"] .partavg, .vscode-dark .partavg, [theme="dark"] .partavg'
"""How JupyterLab, VS Code and Colab say that a page is dark."""
_STYLE = f"""<style>
.partavg {{ {palette.variables(palette.LIGHT)} }}
{_DARK} {{ {palette.variables(palette.DARK)} }}
{palette.classes(".partavg ")}
.partavg {{ display: flex; flex-wrap: wrap; gap: 0 1.5rem; align-items: start }}
.partavg > p {{ flex-basis: 100%; margin: .3rem 0 }}
.partavg figure {{ flex: 1 1 300px; max-width: 560px; margin: 0 }}
.partavg svg {{ font: 12px system-ui, sans-serif; fill: currentColor }}
.partavg figcaption svg {{ width: 24px; margin-left: 1em }}
.partavg th, .partavg td {{ text-align: right; padding: .1rem .6rem }}
.partavg .grid {{ stroke: currentColor; opacity: .15 }}
.partavg progress {{ width: 12em; vertical-align: middle }}
</style>"""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture that a notebook shows."""

    html: str

    def _repr_html_(self) -> str:
        return f'<div class="partavg">{_STYLE}{self.html}</div>'


@dataclass(frozen=True, slots=True)
class Table:
    """Metrics, a row for each step at which something was measured.

    >>> table = Table([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5, "accuracy": 0.5}])
    >>> table.columns
    ('step', 'loss', 'accuracy')
    >>> table["loss"], table["accuracy"]  # NaN where nothing was measured
    (array([2. , 1.5]), array([nan, 0.5]))
    >>> table
    step  loss  accuracy
       1     2
       2   1.5       0.5
    """

    rows: list[Row] = field(repr=False)
    name: str = "run"

    def __post_init__(self) -> None:
        if not isinstance(self.rows, list) or not all(isinstance(row, dict) for row in self.rows):
            raise ValueError(f"rows {shown(self.rows)} are none: give a list of dicts")
        check_kind("name", self.name, str, "a text")

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A column as an array: of numbers, or of objects where it holds anything else."""
        if name not in self.columns:
            raise KeyError(f"{name!r} was not measured: there are {', '.join(self.columns)}")
        values = [row.get(name, np.nan) for row in self.rows]
        if all(isinstance(value, int | float) for value in values):
            return np.array(values)
        column = np.empty(len(values), dtype=object)
        column[:] = values
        return column

    def to_pandas(self) -> Any:
        """The same as a DataFrame, where pandas is installed."""
        return import_module("pandas").DataFrame(self.rows, columns=list(self.columns))

    def figure(self, metric: str, *others: "Table") -> Figure:
        """A metric against the step, beside that of other runs."""
        tables = [self, *others]
        if not any(metric in table.columns for table in tables):
            self[metric]  # says what there is
        names = [table.name for table in tables]
        legend = _legend(names) if others else ""
        said = f"<figcaption><b>{escape(metric)}</b> {legend}</figcaption>"
        drawn = _drawn(metric, [table._points(metric) for table in tables])
        return Figure(f"<figure>{said}{drawn}</figure>")

    def _points(self, metric: str) -> list[tuple[float, float]]:
        pairs = [(row["step"], row[metric]) for row in self.rows if metric in row]
        return [(step, value) for step, value in pairs if isfinite(value)]

    def _cells(self) -> list[list[str]]:
        """What is shown: the first and the last rows of the columns that hold numbers."""
        names = [name for name in self.columns if self[name].dtype != object]
        half = _MOST_ROWS // 2
        rows = self.rows if len(self) <= _MOST_ROWS else [*self.rows[:half], *self.rows[-half:]]
        cells = [[_number(row[name]) if name in row else "" for name in names] for row in rows]
        if len(self) > _MOST_ROWS:
            cells.insert(half, ["…"] * len(names))
        return [names, *cells]

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = (
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in cells
        )
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        head, *body = self._cells()
        lines = "".join(f"<tr>{_row('td', row)}</tr>" for row in body)
        table = f"<table><thead><tr>{_row('th', head)}</tr></thead><tbody>{lines}</tbody></table>"
        return Figure(f"{table}<p>{len(self)} rows</p>")._repr_html_()


@dataclass(frozen=True, slots=True)
class Results:
    """What is in a run folder: the recipe, the metrics, and how the run ended."""

    path: Path
    config: dict[str, Any]
    """The recipe, every default filled in."""
    metrics: Table
    summary: Row
    """Empty while the run goes on."""

    def figure(self, metric: str, *others: "Results") -> Figure:
        """A metric against the step, beside that of other runs."""
        return self.metrics.figure(metric, *(other.metrics for other in others))

    def __repr__(self) -> str:
        ended = "finished" if self.summary else "not finished"
        return f"{self.path}: {len(self.metrics)} rows of metrics, {ended}\n{self.metrics!r}"

    def _repr_html_(self) -> str:
        numbers = {k: _number(v) for k, v in self.summary.items() if isinstance(v, int | float)}
        summary = "".join(
            f"<tr>{_row('th', [k])}{_row('td', [v])}</tr>" for k, v in numbers.items()
        )
        asked = RunFolder(self.path).metrics()
        charts = "".join(self.figure(metric).html for metric in _drawn_of(self.metrics, asked))
        title = f"<p><b>{escape(str(self.path))}</b></p><table>{summary}</table>"
        return Figure(title + charts)._repr_html_()


def load_run(folder: str | Path) -> Results:
    """What a run left in its folder; a run that goes on can be read, too.

    `load_run("runs/mine").metrics["accuracy"]` is an array, `.figure("accuracy")` a picture, and
    the whole shows itself in a notebook.
    """
    check_kind("folder", folder, str | Path, "its path")
    here = RunFolder(Path(folder))
    if not here.config_path.exists():
        inside = sorted(path.parent.name for path in here.path.glob("*/config.toml"))
        hint = f"name one of its folders, {', '.join(inside)}" if inside else "name a run folder"
        raise ValueError(f"{folder} holds no run: {hint}")
    rows = list(here.rows()) if here.metrics_path.exists() else []
    return Results(
        here.path,
        read(here.config_path),
        Table(rows, here.path.resolve().name),
        here.summary() if here.finished else {},
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison found: print it, or let a notebook show it."""

    path: Path
    """The folder of all runs."""
    entries: Sequence[StartedRun] = field(repr=False)
    report: Path
    diverged: dict[str, str]
    """Runs that met a number that is not finite, and what was said of them."""

    @property
    def results(self) -> list[Result]:
        """The summaries of each scheme, one per seed."""
        return results(self.entries)

    @property
    def verdict(self) -> str:
        """What was seen, in a sentence; empty where not all runs came to their end."""
        return "" if self.diverged else verdict(self.results)

    def run(self, scheme: str, seed: int = 0) -> Results:
        """One of the runs."""
        for entry in self.entries:
            if (entry.scheme, entry.seed) == (scheme, seed):
                return load_run(entry.folder.path)
        known = ", ".join(f"{entry.scheme} {entry.seed}" for entry in self.entries)
        raise ValueError(f"there is no run {scheme} {seed}: use one of {known}")

    def figure(self, metric: str) -> Figure:
        """A metric of all runs against the step."""
        first, *others = [
            load_run(entry.folder.path) for entry in self.entries if entry.folder.exists
        ]
        return first.figure(metric, *others)

    @property
    def _said(self) -> list[str]:
        failed = [f"{label} diverged: {why}" for label, why in self.diverged.items()]
        return [*filter(None, [self.verdict]), *failed, f"report: {self.report}"]

    def __repr__(self) -> str:
        console = Console(width=output.width(), force_terminal=False)
        with console.capture() as shown:
            console.print(comparison_table(self.results))
        return "\n".join([shown.get().rstrip(), *self._said])

    def _repr_html_(self) -> str:
        table = comparison(grouped(of_entries(self.entries))).html()
        said = "".join(f"<p>{escape(line)}</p>" for line in self._said)
        return Figure(f"<div>{table}</div>{said}")._repr_html_()


def shown_here() -> Display:
    """What shows progress in this place: below the cell of a notebook, in a terminal, in a log."""
    return _Cell() if _in_notebook() else display(Console())


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class _Cell:
    """The Display of a notebook: a bar and figures below the cell, redrawn in place."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._status = Status()
        self._label, self._steps, self._shown = "", 1, 0.0
        self._asked: Sequence[Metric] = ()
        self._handle: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Print below the cell."""
        print(text)

    def begin(self, about: RunInfo) -> None:
        """Begin to show a run, below those that were shown before."""
        show = import_module("IPython.display").display
        self._handle = show(Figure(""), display_id=True)
        self._rows, self._status, self._shown = [], Status(about.metrics), 0.0
        self._label, self._steps, self._asked = about.label, about.steps, about.metrics

    def end(self, summary: Row | None) -> None:
        """Leave what is shown; say so if the run ended before its last step."""
        if summary and "stopped_at" in summary:
            self._draw(f", {ending(summary)}")

    def take(self, row: Row) -> None:
        """Draw anew, unless that was done just now and more is to come."""
        self._rows.append(row)
        self._status.take(row)
        now = monotonic()
        if row["step"] < self._steps and now - self._shown < _UPDATE_EVERY:
            return
        self._shown = now
        self._draw()

    def _draw(self, ended: str = "") -> None:
        step = self._rows[-1]["step"]
        bar = f'<progress max="{self._steps}" value="{step}"></progress>'
        said = f"{escape(self._label)}: {bar} {step}/{self._steps}, {self._status}{ended}"
        table = Table(self._rows)
        charts = [table.figure(metric).html for metric in _drawn_of(table, self._asked)]
        self._handle.update(Figure(f"<p>{said}</p>{''.join(charts)}"))


def _drawn_of(table: Table, asked: Sequence[Metric]) -> list[str]:
    """The metrics to draw: the loss, a result, those that were asked for, the discrepancy."""
    results = [name for name in _RESULTS if name in table.columns][:1]
    own = [metric.key for metric in asked]
    wanted = dict.fromkeys(["loss", *results, *own, "discrepancy"])
    return [name for name in wanted if name in table.columns and table[name].dtype != object]


def _row(tag: str, cells: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)


def _drawn(title: str, points: Sequence[list[tuple[float, float]]]) -> str:
    """Curves over steps, as the report draws them."""
    lines = [
        Line(place, place, Curve(*np.array(curve, float).T))
        for place, curve in enumerate(points)
        if curve
    ]
    return draw(Chart(title, title, "", "step", title, lines)) if lines else ""


def _legend(names: Sequence[str]) -> str:
    return " ".join(
        f'<svg viewBox="0 0 28 8">{swatch(place)}</svg> {escape(name)}'
        for place, name in enumerate(names)
    )


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
