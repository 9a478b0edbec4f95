"""Driving runs from the command line: signals, progress, early ends."""

import errno
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from partavg.backends.processes import shares
from partavg.backends.rank_failure import RankLost
from partavg.backends.stragglers import Tempo
from partavg.cli.display import Display
from partavg.cli.output import BAD_INPUT, DIVERGED, INTERRUPTED, LOST, fail
from partavg.compare import Entry
from partavg.config import Config
from partavg.data.dataset import Dataset
from partavg.folder import RunFolder
from partavg.run import Diverged, Run


class Stopped(Exception):
    """The user asked to stop; everything is saved."""


class StopRequest:
    """The first Ctrl-C asks to stop after the present step, the second stops at once."""

    def __init__(self) -> None:
        self.made = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.made:
            raise KeyboardInterrupt
        self.made = True


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Take Ctrl-C and a termination signal as a request to stop."""
    request = StopRequest()
    old = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def early_ends(resume: list[str]) -> Iterator[None]:
    """While a command works, stopping, divergence and full disks end it; `resume` continues it."""
    try:
        yield
    except Diverged as error:
        fail(str(error), DIVERGED)
    except RankLost as error:
        fail(f"{error}; continue with: {shlex.join(resume)}", LOST, here=error.speaks)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        fail(f"{error.strerror}; continue with: {shlex.join(resume)}", BAD_INPUT)
    except Stopped:
        fail(f"stopped and saved; continue with: {shlex.join(resume)}", INTERRUPTED)
    except KeyboardInterrupt:
        fail(f"stopped; continue with: {shlex.join(resume)}", INTERRUPTED)


def introduce(run: Run, display: Display) -> None:
    """Say how a run is computed."""
    display.say(f"engine: {run.config.engine.name} ({run.engine_reason})")
    if run.team.size > 1:
        counts = {share.stop - share.start for share in shares(run.workers, run.team.size)}
        each = "–".join(map(str, sorted(counts)))
        machines = f" on {run.team.machines} machines" if run.team.machines > 1 else ""
        display.say(f"{run.team.size} ranks{machines}, workers on each: {each}")


def train(run: Run, label: str, display: Display, request: StopRequest) -> None:
    """Train a run to its end, showing progress; raise Stopped if any rank is asked to stop."""
    team, tempo = run.team, Tempo()
    team.asks = lambda: request.made
    scale = run.config.training.scale
    display.start(label if scale == 1 else f"{label} scaled {scale:g}", run.step, run.steps)
    for row in run:
        warning = tempo.take(team.seconds)
        if warning:
            display.say(f"warning: {warning}")
        display.update({**row, "ranks": tempo.range} if tempo.range else row)
        if team.stopping and row["step"] < run.steps:
            run.save()
            raise Stopped


def train_all(
    entries: Sequence[Entry],
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
            train(run, label, display, request)
        except Diverged as error:
            display.say(f"{label} diverged")
            diverged.append(f"{entry.folder.path}: {error}")
    return diverged


def next_folder(name: str) -> Path:
    """The first of runs/name-1, runs/name-2, … that is free."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path
