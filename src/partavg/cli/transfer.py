"""What a person sees while files are transferred: bars in a terminal, plain lines elsewhere."""

from time import monotonic
from typing import Protocol, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_LINE_EVERY = 10.0  # seconds between plain lines of one file


class Transfer(Protocol):
    """Shows the progress of files, one after another."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def say(self, text: str) -> None:
        """Show a line of text above the progress."""
        ...

    def update(self, label: str, done: int, size: int) -> None:
        """So many bytes of what the label says are done."""
        ...


def transfer(console: Console) -> Transfer:
    """The display that suits the console."""
    return TransferBars(console) if console.is_terminal else TransferLines(console)


class TransferBars:
    """A progress bar per file."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20, finished_style="green"),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print above the bars."""
        self._progress.console.print(text, highlight=False, markup=False)

    def update(self, label: str, done: int, size: int) -> None:
        """Move the bar of the label, or add it."""
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=size, completed=done)
        self._progress.update(self._tasks[label], completed=done)


class TransferLines:
    """A line now and then, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._label, self._shown = "", 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Print."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def update(self, label: str, done: int, size: int) -> None:
        """Print a line if the label is new or the last line is old."""
        now = monotonic()
        if label == self._label and now - self._shown < _LINE_EVERY:
            return
        self._label, self._shown = label, now
        self.say(f"{label}: {done / 1e6:.1f} of {size / 1e6:.1f} MB")
