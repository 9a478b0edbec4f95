"""What a person sees while runs go on: bars in a terminal, plain lines elsewhere."""

from collections.abc import Sequence
from time import monotonic
from typing import Protocol, Self

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from partavg.compare import COLUMNS, NOTE, Result, caveat, number
from partavg.folder import Row

_LINE_EVERY = 10.0  # seconds between plain lines of one run


class Display(Protocol):
    """Shows the progress of runs, one after another."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def say(self, text: str) -> None:
        """Show a line of text above the progress."""
        ...

    def start(self, label: str, step: int, steps: int) -> None:
        """A run begins or goes on at `step`."""
        ...

    def update(self, row: Row) -> None:
        """The run that goes on took a step."""
        ...


def display(console: Console) -> Display:
    """The display that suits the console."""
    return Bars(console) if console.is_terminal else Lines(console)


class Bars:
    """A progress bar per run."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
        )
        self._status = Status()
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print above the bars."""
        self._progress.console.print(text, highlight=False, markup=False)

    def start(self, label: str, step: int, steps: int) -> None:
        """Add a bar."""
        self._status = Status()
        self._task = self._progress.add_task(label, total=steps, completed=step, status="")

    def update(self, row: Row) -> None:
        """Move the newest bar."""
        self._status.take(row)
        self._progress.update(self._task, completed=row["step"], status=str(self._status))


class Lines:
    """A line now and then, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = Status()
        self._label, self._steps = "", 0
        self._first, self._began, self._shown = 0, 0.0, 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Print."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def start(self, label: str, step: int, steps: int) -> None:
        """Begin to watch a run."""
        self._status = Status()
        self._label, self._steps, self._first = label, steps, step
        self._began = self._shown = monotonic()

    def update(self, row: Row) -> None:
        """Print a line if the last one is old or the run is over."""
        self._status.take(row)
        now, step = monotonic(), row["step"]
        if step < self._steps and now - self._shown < _LINE_EVERY:
            return
        self._shown = now
        left = (now - self._began) / (step - self._first) * (self._steps - step)
        self.say(f"{self._label}: step {step}/{self._steps}, {self._status}, {left:.0f} s left")


class Status:
    """The newest value of each metric."""

    def __init__(self) -> None:
        self._row: Row = {}

    def take(self, row: Row) -> None:
        """Keep what is new; a row has only what was measured at its step."""
        self._row |= row

    def __str__(self) -> str:
        row = self._row
        text = f"loss {row['loss']:.3f}"
        if row.get("accuracy") is not None:
            text += f" acc {100 * row['accuracy']:.1f}%"
        if "discrepancy" in row:
            text += f" discrepancy {number(row['discrepancy'], '.3g')}"
        if "ranks" in row:
            text += f" {row['ranks']}"
        return text


def comparison_table(found: Sequence[Result]) -> Table:
    """The results of a comparison, a line per scheme."""
    said = caveat([summary for result in found for summary in result.summaries])
    caption = f"{NOTE} {said.capitalize()}." if said else NOTE
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    table.add_column("scheme", no_wrap=True)
    for heading in COLUMNS:
        table.add_column(heading.replace(" ", "\n"), justify="right")
    for result in found:
        table.add_row(result.scheme, *(result.text(*how) for how in COLUMNS.values()))
    return table
