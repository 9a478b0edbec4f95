"""Seconds that a rank computes, waits for others, and for what is on its way."""

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from partavg.core.reduce import Arriving

Mark = Any
"""A moment: seconds of the host's clock, or an event of a GPU's stream."""


class Stopwatch:
    """Takes the time for which training stands still, and that between.

    On a GPU these are times of its stream: events mark them, which are looked at one message
    later, so that the host never waits for it.
    """

    def __init__(self, device: torch.device) -> None:
        self.late = device.type == "cuda"
        self.compute = self.waiting = self.exchange = 0.0
        self.last_compute = 0.0
        """Between the last two messages of which times are known."""
        self._resumed = self._mark()
        self._unread: deque[tuple[Mark, Mark, Mark]] = deque()

    def timed(self, arriving: Arriving, behind: Callable[[], float]) -> Arriving:
        """Take the time until a sum is there.

        `behind` says then by how much the slowest rank began later than this one: for so long, at
        most, it waited for another.
        """

        def waited() -> torch.Tensor:
            asked = self._mark()
            total = arriving()
            got = self._mark()
            self._unread.append((self._resumed, asked, got))
            self._resumed = got
            while len(self._unread) > self.late:
                self._read(behind())
            return total

        return waited

    def _read(self, behind: float) -> None:
        resumed, asked, got = self._unread.popleft()
        self.last_compute, stood = self._between(resumed, asked), self._between(asked, got)
        waiting = min(stood, behind)
        self.compute += self.last_compute
        self.waiting += waiting
        self.exchange += stood - waiting

    def _mark(self) -> Mark:
        if not self.late:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _between(self, one: Mark, other: Mark) -> float:
        seconds: float = one.elapsed_time(other) / 1e3 if self.late else other - one
        return seconds
