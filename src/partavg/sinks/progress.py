"""What a person sees while runs go on: bars in a terminal, plain lines elsewhere."""

from collections.abc import Sequence
from time import monotonic
from typing import Protocol, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from partavg.metrics.metric import Metric, Row
from partavg.metrics.table import presented
from partavg.sinks.sink import RunInfo, Sink

_LINE_EVERY = 10.0  # seconds between plain lines of one run
EARLY = "stopped early"
SPENT = "ended by max_epsilon"


class Display(Sink, Protocol):
    """A sink that shows the progress of runs, one after another."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def say(self, text: str) -> None:
        """Show a line of text above the progress."""
        ...


def display(console: Console) -> Display:
    """The display that suits the console."""
    return Bars(console) if console.is_terminal else Lines(console)


class _Shortened(TextColumn):
    """Text that alone is cut where a line is too short."""

    def __init__(self, text: str) -> None:
        super().__init__(text, table_column=Column())

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


def _whole() -> Column:
    return Column(no_wrap=True)


def _cut(width: int) -> Column:
    return Column(no_wrap=True, overflow="ellipsis", max_width=width)


class Bars:
    """A progress bar per run."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", table_column=_cut(max(20, console.width // 3))),
            BarColumn(bar_width=10, finished_style="green", table_column=_whole()),
            MofNCompleteColumn(table_column=_whole()),
            _Shortened("{task.fields[status]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=_whole()),
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

    def begin(self, about: RunInfo) -> None:
        """Add a bar."""
        self._status = Status(about.metrics)
        total, done = about.steps, about.step
        self._task = self._progress.add_task(about.label, total=total, completed=done, status="")

    def take(self, row: Row) -> None:
        """Move the newest bar."""
        self._status.take(row)
        self._progress.update(self._task, completed=row["step"], status=str(self._status))

    def end(self, summary: Row | None) -> None:
        """Leave the bar where it is, and say so if the run ended before its last step."""
        if summary and "stopped_at" in summary:
            self._progress.update(self._task, status=f"{self._status}, {ending(summary)}")


class Lines:
    """A line now and then, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = Status()
        self._about = RunInfo("", 0)
        self._began = self._shown = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Print."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, about: RunInfo) -> None:
        """Begin to watch a run."""
        self._status, self._about = Status(about.metrics), about
        self._began = self._shown = monotonic()

    def take(self, row: Row) -> None:
        """Print a line if the last one is old or the run is over."""
        self._status.take(row)
        now, step, about = monotonic(), row["step"], self._about
        if step < about.steps and now - self._shown < _LINE_EVERY:
            return
        self._shown = now
        left = (now - self._began) / (step - about.step) * (about.steps - step)
        self.say(f"{about.label}: step {step}/{about.steps}, {self._status}, {left:.0f} s left")

    def end(self, summary: Row | None) -> None:
        """Say where the run ended, if that was before its last step."""
        if summary and "stopped_at" in summary:
            about, step = self._about, summary["stopped_at"]
            self.say(f"{about.label}: step {step}/{about.steps}, {self._status}, {ending(summary)}")


def ending(summary: Row) -> str:
    """Why a run ended before its last step."""
    return SPENT if summary.get("stopped_by") == "max_epsilon" else EARLY


class Status:
    """The newest value of each metric, those that were `asked` for as they say."""

    def __init__(self, asked: Sequence[Metric] = ()) -> None:
        self._row: Row = {}
        self._metrics = [metric for metric in presented(asked) if metric.progress]

    def take(self, row: Row) -> None:
        """Keep what is new; a row has only what was measured at its step."""
        self._row |= row

    def __str__(self) -> str:
        row = self._row
        shown = [
            metric.shown(row[metric.key])
            for metric in self._metrics
            if row.get(metric.key) is not None
        ]
        return " ".join([*shown, *([row["ranks"]] if "ranks" in row else [])])
