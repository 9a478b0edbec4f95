"""What a command says, and how it ends; nothing here imports torch."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

import click
from rich.console import Console

BAD_INPUT, DIVERGED, LOST, INTERRUPTED = 2, 3, 4, 130


def launched() -> bool:
    """Whether torchrun, or something like it, started this process as one of several."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def speaks() -> bool:
    """Whether this process talks to the user: of several ranks only the first does."""
    return not launched() or os.environ["RANK"] == "0"


def console() -> Console:
    """Where commands write."""
    if not speaks():
        return Console(quiet=True, force_terminal=False)
    return Console() if sys.stdout.isatty() else Console(force_terminal=False, width=width())


def width() -> int:
    """Letters in a line: a log or a pipe has room for a whole table."""
    return Console().width if sys.stdout.isatty() else 200


def say(text: str) -> None:
    """Print a line, once for all ranks."""
    if speaks():
        click.echo(text)


def fail(sentence: str, code: int, *, here: bool | None = None) -> NoReturn:
    """Say why, once for all ranks unless it is said `here`, and leave."""
    if speaks() if here is None else here:
        click.echo(f"partavg: {sentence}", err=True)
    sys.exit(code)


@contextmanager
def bad_input(together: AbstractContextManager[None] | None = None) -> Iterator[None]:
    """While a command prepares its work, an error is the user's mistake and ends it.

    Of a command of several ranks it ends all, if that is what `together` is for.
    """
    try:
        with together or nullcontext():
            yield
    except (ValueError, OSError) as error:
        fail(" ".join(str(error).split()), BAD_INPUT)
    except KeyboardInterrupt:
        fail("stopped before training started; nothing is lost", INTERRUPTED)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings to a person: one line each."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if speaks():
            click.echo(f"partavg: warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
