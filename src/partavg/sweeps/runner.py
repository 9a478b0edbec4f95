"""Working off a sweep: whatever process comes takes what nobody is at work on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from time import monotonic, sleep

from partavg.comparison import StartedRun
from partavg.sweeps.claim import claim
from partavg.sweeps.outcome import outcome
from partavg.sweeps.plan import Sweep
from partavg.sweeps.search import Search, Tried, best
from partavg.sweeps.space import Point

_WAIT = 0.2  # seconds before somebody looks again for what others finished


@dataclass(frozen=True, slots=True)
class Task:
    """A run to train, up to a step or to its end."""

    entry: StartedRun
    point: Point
    label: str = ""
    until: int | None = None
    tests: bool = False
    """Whether it is judged on the test set."""


Train = Callable[[Task], None]
"""Trains a task, or goes on with it; one that diverges is noted, and no error."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a sweep is done, in whole runs."""

    done: float
    total: float

    def left(self, seconds: float, before: float) -> float:
        """Seconds to go, if the rest is as fast as what was done since a start at `before`."""
        gone = self.done - before
        return (self.total - self.done) * seconds / gone if gone > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Sweeping:
    """A sweep and its search."""

    sweep: Sweep
    search: Search

    def chosen(self, scheme: str) -> Tried | None:
        """The best settings of a scheme; None as long as some are open, or where all diverged."""
        return best(self.search.tried(scheme)) if self.search.over(scheme) else None

    def begun(self) -> list[Task]:
        """All runs that were begun, finished ones among them."""
        found = []
        for scheme in self.sweep.schemes:
            tried = [one.trial for one in self.search.tried(scheme)]
            for trial in (*tried, *self.search.open(scheme)):
                found += [Task(entry, trial.point) for entry in trial.entries]
            found += self._tests(scheme)
        return [task for task in found if task.entry.folder.exists]

    def tests(self, scheme: str) -> list[StartedRun]:
        """The runs with the best settings, once these are known."""
        return [task.entry for task in self._tests(scheme)]

    def _tests(self, scheme: str) -> list[Task]:
        chosen = self.chosen(scheme)
        if chosen is None:
            return []
        return [
            Task(entry, chosen.trial.point, f"{scheme} seed {entry.seed}", tests=True)
            for entry in self.sweep.tests(scheme)
        ]

    def work(self, train: Train, look: Callable[[], None] | None = None) -> None:
        """Train all that there is; where others are at work, wait until they are done, too.

        Somebody may `look` at what is there after every run.
        """

        def train_and_look(task: Task) -> None:
            train(task)
            if look:
                look()

        while True:
            did, waits = False, False
            for scheme in self.sweep.schemes:
                did_here, waits_here = self._work_on(scheme, train_and_look)
                did, waits = did or did_here, waits or waits_here
            if look:
                look()
            if not did and not waits:
                return
            if not did:
                sleep(_WAIT)

    def _work_on(self, scheme: str, train: Train) -> tuple[bool, bool]:
        """Whether something of a scheme was done, and whether others are at work on it."""
        did, waits = False, False
        for task in self._tasks(scheme):
            with claim(task.entry.folder.path, self.sweep.out / "locks") as ours:
                if ours and not _is_done(task):
                    train(task)
                    did = True
                waits |= not ours
        return did, waits

    def _tasks(self, scheme: str) -> Iterator[Task]:
        """What is open, as long as there is something; looked up again after each."""
        for trial in chain(self.search.open(scheme), iter(lambda: self.search.more(scheme), None)):
            for entry in trial.entries:
                if trial.outcome is None:  # where one seed diverged the others tell nothing more
                    label = f"{scheme} {entry.folder.path.name.partition('-')[2]}"
                    yield Task(entry, trial.point, label, trial.until)
            if trial.outcome:
                self.search.tell(scheme, trial)
        yield from (task for task in self._tests(scheme) if not _is_done(task))

    def progress(self) -> Progress:
        """How far all schemes are."""
        schemes = self.sweep.schemes
        total = sum(self.search.work(scheme) + self.sweep.seeds for scheme in schemes)
        return Progress(sum(map(self._done, schemes)), total)

    def _done(self, scheme: str) -> float:
        if not self.search.over(scheme):
            return self.search.done(scheme)
        ended = sum(map(_is_done, self._tests(scheme)))
        return self.search.work(scheme) + ended


def _is_done(task: Task) -> bool:
    return outcome(task.entry.folder, task.until) is not None


class Clock:
    """Says how much of a sweep is left."""

    def __init__(self, sweeping: Sweeping) -> None:
        self._sweeping, self._began = sweeping, monotonic()
        self._before = sweeping.progress().done

    def __str__(self) -> str:
        """Runs done, and the time that is left."""
        now = self._sweeping.progress()
        left = now.left(monotonic() - self._began, self._before)
        minutes = (
            f", about {left / 60:.0f} min left" if left >= 90 else f", about {left:.0f} s left"
        )
        return f"{now.done:.0f} of {now.total:.0f} runs{minutes if left > 0 else ''}"
