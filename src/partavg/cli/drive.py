"""Driving runs from the command line: signals, warnings, exit codes."""

import shlex
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
from rich.console import Console

from partavg.cli.display import Display
from partavg.compare import Entry
from partavg.data.dataset import Dataset
from partavg.run import Diverged, Run

BAD_INPUT, DIVERGED, INTERRUPTED = 2, 3, 130


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
def bad_input() -> Iterator[None]:
    """While a command prepares its work, an error is the user's mistake and ends it."""
    try:
        yield
    except (ValueError, OSError) as error:
        fail(" ".join(str(error).split()), BAD_INPUT)
    except KeyboardInterrupt:
        fail("stopped before training started; nothing is lost", INTERRUPTED)


@contextmanager
def early_ends(resume: list[str]) -> Iterator[None]:
    """While a command works, stopping and divergence end it; `resume` continues it."""
    try:
        yield
    except Diverged as error:
        fail(str(error), DIVERGED)
    except Stopped:
        fail(f"stopped and saved; continue with: {shlex.join(resume)}", INTERRUPTED)
    except KeyboardInterrupt:
        fail(f"stopped; continue with: {shlex.join(resume)}", INTERRUPTED)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings to a person: one line each."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        click.echo(f"partavg: warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def console() -> Console:
    """Where commands write; a log or a pipe has room for a whole table."""
    return Console() if sys.stdout.isatty() else Console(force_terminal=False, width=120)


def fail(sentence: str, code: int) -> NoReturn:
    """Say why, and leave."""
    click.echo(f"partavg: {sentence}", err=True)
    sys.exit(code)


def train(run: Run, label: str, display: Display, request: StopRequest) -> None:
    """Train a run to its end, showing progress; raise Stopped if asked to stop."""
    scale = run.config.training.scale
    display.start(label if scale == 1 else f"{label} scaled {scale:g}", run.step, run.steps)
    for row in run:
        display.update(row)
        if request.made and row["step"] < run.steps:
            run.save()
            raise Stopped


def train_all(
    entries: Sequence[Entry],
    data: Dataset,
    display: Display,
    request: StopRequest,
    *,
    resume: bool,
    force: bool,
    diverged: list[str] | None = None,
) -> None:
    """Train all runs of a comparison with the engine of the first.

    A run that diverges ends it, or is added to `diverged` while the others go on.
    """
    engine = None
    several = len({entry.seed for entry in entries}) > 1
    for entry in entries:
        if resume and entry.folder.finished:
            continue
        config = replace(entry.config, engine=engine) if engine else entry.config
        with bad_input():
            run = Run(config, data, entry.folder, resume=resume, force=force)
        if engine is None:
            engine = run.config.engine
            display.say(f"engine: {engine.name} ({run.engine_reason})")
        label = f"{entry.scheme} seed {entry.seed}" if several else entry.scheme
        try:
            train(run, label, display, request)
        except Diverged as error:
            if diverged is None:
                raise
            diverged.append(f"{entry.folder.path}: {error}")


def next_folder(name: str) -> Path:
    """The first of runs/name-1, runs/name-2, … that is free."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path
