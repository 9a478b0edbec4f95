"""Driving runs from the command line: signals, progress, early ends."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from partavg.backends.lost import RankLost
from partavg.backends.processes import Processes, dealt_evenly
from partavg.backends.stragglers import Stragglers
from partavg.cli.output import BAD_INPUT, DIVERGED, INTERRUPTED, LOST, fail
from partavg.comparison import PlannedRun
from partavg.config import Config
from partavg.data.dataset import Dataset
from partavg.folder import RunFolder
from partavg.metrics import MetricFailed
from partavg.metrics.metric import Row
from partavg.recipe_run import Run
from partavg.session import Diverged
from partavg.sinks.progress import Display
from partavg.sinks.sink import RunInfo, SinkFailed, full
from partavg.stopping import Stopped, StopRequest, train_session


@contextmanager
def early_ends(resume: list[str]) -> Iterator[None]:
    """While a command works, what ends it early is said in a sentence; `resume` continues it."""
    try:
        yield
    except Diverged as error:
        fail(str(error), DIVERGED)
    except RankLost as error:
        fail(f"{error}; continue with: {shlex.join(resume)}", LOST, here=error.speaks)
    except OSError as error:
        if not full(error):
            raise
        fail(f"{error.strerror}; continue with: {shlex.join(resume)}", BAD_INPUT)
    except (SinkFailed, MetricFailed) as error:
        fail(f"{error}; continue with: {shlex.join(resume)}", BAD_INPUT)
    except Stopped:
        fail(f"stopped and saved; continue with: {shlex.join(resume)}", INTERRUPTED)
    except KeyboardInterrupt:
        fail(f"stopped; continue with: {shlex.join(resume)}", INTERRUPTED)


def introduce(run: Run, display: Display) -> None:
    """Say how a run is computed."""
    display.say(f"engine: {run.config.engine.name} ({run.engine_reason})")
    if run.processes.size > 1:
        dealt = dealt_evenly(run.workers, run.processes.size)
        counts = {held.stop - held.start for held in dealt}
        each = "–".join(map(str, sorted(counts)))
        machines = f" on {run.processes.machines} machines" if run.processes.machines > 1 else ""
        display.say(f"{run.processes.size} ranks{machines}, workers on each: {each}")


class RankTimes:
    """A sink that shows a run of several ranks: how fast they are, and which one is slow."""

    def __init__(self, display: Display, processes: Processes) -> None:
        self._display, self._processes, self._stragglers = display, processes, Stragglers()

    def begin(self, about: RunInfo) -> None:
        """Begin to show it."""
        self._display.begin(about)

    def take(self, row: Row) -> None:
        """Show a step, and what is known of the ranks."""
        if warning := self._stragglers.take(self._processes.seconds):
            self._display.say(f"warning: {warning}")
        times = self._stragglers.range
        self._display.take({**row, "ranks": times} if times else row)

    def end(self, summary: Row | None) -> None:
        """Show no more."""
        self._display.end(summary)


def train(
    run: Run,
    label: str,
    display: Display,
    request: StopRequest,
    group: str = "",
    *,
    until: int | None = None,
) -> None:
    """Train a run to its end, or to a step, showing progress.

    Raise Stopped if any rank is asked to stop.
    """
    scale = run.config.training.scale
    shown = label if scale == 1 else f"{label} scaled {scale:g}"
    train_session(run, shown, [RankTimes(display, run.processes)], request, group, until=until)


def train_all(
    entries: Sequence[PlannedRun],
    data: Dataset,
    start: Callable[[Config, Dataset, RunFolder], Run | None],
    display: Display,
    request: StopRequest,
) -> list[str]:
    """Train all runs of a comparison with the engine of the first; say which of them diverged.

    `start` gives none where nothing is left to do.
    """
    diverged = []
    engine = None
    several = len({entry.seed for entry in entries}) > 1
    for entry in entries:
        config = replace(entry.config, engine=engine) if engine else entry.config
        run = start(config, data, entry.folder)
        if run is None:
            continue
        if engine is None:
            engine = run.config.engine
            introduce(run, display)
        label = f"{entry.scheme} seed {entry.seed}" if several else entry.scheme
        try:
            train(run, label, display, request, group=entry.folder.path.resolve().parent.name)
        except Diverged as error:
            display.say(f"{label} diverged")
            diverged.append(f"{entry.folder.path}: {error}")
        del run  # or there would be two in memory when the next is made
    return diverged
