"""In which order settings are tried, and which of them go on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from partavg.comparison import StartedRun
from partavg.metrics.metric import Metric
from partavg.sweeps.outcome import Outcome, better, outcome, together
from partavg.sweeps.plan import Sweep
from partavg.sweeps.space import Point

_KEPT = 3  # one of so many settings goes on from a rung


class Trial(NamedTuple):
    """Settings of a scheme that are tried: up to a step, or to the end."""

    number: int
    point: Point
    entries: tuple[StartedRun, ...]
    """A run for each seed."""
    until: int | None = None

    @property
    def outcome(self) -> Outcome | None:
        """What became of it; None as long as a seed is missing."""
        return together([outcome(entry.folder, self.until) for entry in self.entries])

    @property
    def done(self) -> int:
        """How many of its runs are behind us."""
        if self.outcome:
            return len(self.entries)
        return sum(outcome(entry.folder, self.until) is not None for entry in self.entries)


class Tried(NamedTuple):
    """Settings that were tried to the end, and what came of them."""

    trial: Trial
    outcome: Outcome


class Search(Protocol):
    """What to try of a scheme next; all that it knows is on disk, for any process to go on."""

    def open(self, scheme: str) -> list[Trial]:
        """Trials that are not over; somebody may be at work on them."""
        ...

    def more(self, scheme: str) -> Trial | None:
        """Another trial, where all that are open are taken; None if there is none now."""
        ...

    def tell(self, scheme: str, trial: Trial) -> None:
        """A trial is over."""
        ...

    def tried(self, scheme: str) -> list[Tried]:
        """Trials that are over, and are compared."""
        ...

    def over(self, scheme: str) -> bool:
        """Whether nothing more is tried."""
        ...

    def work(self, scheme: str) -> float:
        """Whole runs that trials take together."""
        ...

    def done(self, scheme: str) -> float:
        """Of these, those that are behind us."""
        ...


@dataclass(frozen=True, slots=True)
class Listed:
    """Tries every point to the end."""

    sweep: Sweep

    def _trials(self, scheme: str) -> list[Trial]:
        return [
            Trial(number, point, self.sweep.trial(scheme, number, point))
            for number, point in enumerate(self.sweep.points)
        ]

    def open(self, scheme: str) -> list[Trial]:
        """Those that are not finished."""
        return [trial for trial in self._trials(scheme) if trial.outcome is None]

    def more(self, scheme: str) -> Trial | None:
        """All are known."""
        return None

    def tell(self, scheme: str, trial: Trial) -> None:
        """Its folder says it."""

    def tried(self, scheme: str) -> list[Tried]:
        """Those that are finished."""
        found = ((trial, trial.outcome) for trial in self._trials(scheme))
        return [Tried(trial, known) for trial, known in found if known]

    def over(self, scheme: str) -> bool:
        """Whether none is open."""
        return not self.open(scheme)

    def work(self, scheme: str) -> float:
        """One for each, and for each seed."""
        return len(self.sweep.points) * self.sweep.tune_seeds

    def done(self, scheme: str) -> float:
        """One for each that is finished."""
        return sum(trial.done for trial in self._trials(scheme))


@dataclass(frozen=True, slots=True)
class Halving(Listed):
    """Successive halving: all points for a part of the steps, the best third of them for more.

    A run that goes on does so from where it was: nothing is trained twice.
    """

    steps: int
    """Of a whole run."""
    every: int
    """Steps between two evaluations: rungs lie there."""

    def rungs(self) -> list[tuple[int, int]]:
        """How many settings go up to which step; the last one is the end."""
        counts = [len(self.sweep.points)]
        while counts[-1] > _KEPT:
            counts.append(-(-counts[-1] // _KEPT))
        shares = [_KEPT ** (len(counts) - 1 - place) for place in range(len(counts))]
        steps = [self._at_evaluation(self.steps // share) for share in shares[:-1]]
        return list(zip(counts, [*steps, self.steps], strict=True))

    def _at_evaluation(self, step: int) -> int:
        every = max(1, self.every)
        return min(self.steps, max(every, round(step / every) * every))

    def open(self, scheme: str) -> list[Trial]:
        """Those of the lowest rung that is not complete."""
        alive = self._trials(scheme)
        for count, step in self.rungs():
            until = None if step >= self.steps else step
            alive = self._best(alive, count, scheme)
            here = [trial._replace(until=until) for trial in alive]
            waiting = [trial for trial in here if trial.outcome is None]
            if waiting:
                return waiting
            alive = here
        return []

    def tried(self, scheme: str) -> list[Tried]:
        """All, each as far as it came: those that went to the end are the ones to choose from."""
        alive, found = self._trials(scheme), {}
        for count, step in self.rungs():
            until = None if step >= self.steps else step
            alive = [trial._replace(until=until) for trial in self._best(alive, count, scheme)]
            for trial in alive:
                if known := trial.outcome:
                    found[trial.number] = Tried(trial, known)
        return [found[number] for number in sorted(found)]

    def work(self, scheme: str) -> float:
        """What goes on counts for what it adds."""
        before, total = 0, 0.0
        for count, step in self.rungs():
            total += count * (step - before) / self.steps
            before = step
        return total * self.sweep.tune_seeds

    def done(self, scheme: str) -> float:
        """Each as far as it came."""
        steps = sum(tried.outcome.step for tried in self.tried(scheme))
        return steps / self.steps * self.sweep.tune_seeds

    def _best(self, trials: Sequence[Trial], count: int, scheme: str) -> list[Trial]:
        """So many of the best ones at the step that they reached, in their order."""
        if len(trials) <= count:
            return list(trials)
        known = [Tried(t, o) for t in trials if (o := t.outcome)]
        kept = {one.trial.number for one in ranked(known)[:count]}
        return [trial for trial in trials if trial.number in kept]


def ranked(tried: Sequence[Tried]) -> list[Tried]:
    """The best first; those that diverged last, and of equal ones the first."""
    metric = metric_of(tried)
    found: list[Tried] = []
    for one in tried:
        place = next(
            (
                place
                for place, other in enumerate(found)
                if metric and better(metric, one.outcome.value, other.outcome.value)
            ),
            len(found),
        )
        found.insert(place, one)
    return found


def metric_of(tried: Sequence[Tried]) -> Metric | None:
    """What settings are compared by."""
    return next((one.outcome.metric for one in tried if one.outcome.metric), None)


def best(tried: Sequence[Tried]) -> Tried | None:
    """The best of those that were tried to the end; None if all diverged."""
    whole = [one for one in tried if one.trial.until is None and one.outcome.value is not None]
    return ranked(whole)[0] if whole else None
