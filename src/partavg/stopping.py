"""Stopping on request: what a person begins, a person can end, and nothing is lost."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType

from partavg.metrics import MetricFailed
from partavg.session import Session
from partavg.sinks.sink import Sink


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
    """Take Ctrl-C and a termination signal as a request to stop, where signals are heard."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    old = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def train_session(
    session: Session,
    label: str,
    sinks: Sequence[Sink],
    request: StopRequest,
    group: str = "",
    *,
    until: int | None = None,
) -> None:
    """Train a session to its end; save it and raise Stopped if any process is asked to stop.

    With `until` it is saved and left at that step, to go on later.
    """
    session.processes.asks = lambda: request.made
    with closing(session.train(label, sinks, group)) as rows:
        try:
            for row in rows:
                if row["step"] == until and row["step"] < session.steps:
                    session.save()
                    return
                if session.processes.stopping and row["step"] < session.steps:
                    session.save()
                    raise Stopped
        except MetricFailed as error:
            session.processes.note(str(error))  # the others will know why this one left
            raise
