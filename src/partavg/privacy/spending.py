"""What a run spends, as a function of the step."""

from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

from partavg.core.schedule import Schedule
from partavg.privacy.accountant import Accountant
from partavg.privacy.settings import Privacy


@dataclass(frozen=True, slots=True)
class Spending:
    """ε of a run, cycle by cycle: a cycle is spent with its first release."""

    privacy: Privacy
    fraction: float
    """Of the clients, drawn by chance in every cycle; 1 if all take part."""
    schedule: Schedule

    @property
    def accountant(self) -> Accountant:
        """For what is released; with local noise for what each client says itself.

        Then any two messages of a client are up to twice the clip apart, and nobody hides in a
        crowd: who receives messages knows whose they are.
        """
        told = self.privacy
        if told.local:
            return Accountant(told.noise / 2, 1.0, told.delta)
        return Accountant(told.noise, self.fraction, told.delta)

    @property
    def key(self) -> str:
        """What ε is called in rows and summaries: that of local noise is another promise."""
        return "epsilon_local" if self.privacy.local else "epsilon"

    def cycles(self, step: int) -> int:
        """Cycles of which something was released up to a step."""
        interval = self.schedule.interval
        whole, more = divmod(step, interval)
        return whole + any(self.schedule(place) for place in range(1, more + 1))

    def epsilon(self, step: int) -> float | None:
        """What was spent up to a step; None where nothing is promised, without noise."""
        found = _epsilon(self.accountant, self.cycles(step))
        return found if isfinite(found) else None

    def last_step(self, steps: int) -> int:
        """Of so many steps, the last one that `max_epsilon` allows."""
        most = self.privacy.max_epsilon
        if most is None:
            return steps
        allowed = _most_cycles(self.accountant, most)
        if not allowed:
            raise ValueError(
                f"privacy.max_epsilon = {most} is below what the first cycle costs, "
                f"{self.accountant.epsilon(1):.4g}: use more noise, fewer clients at a time, or a "
                f"larger max_epsilon"
            )
        return min(steps, allowed * self.schedule.interval)


@lru_cache(maxsize=4096)
def _epsilon(accountant: Accountant, cycles: int) -> float:
    return accountant.epsilon(cycles)


@lru_cache(maxsize=64)
def _most_cycles(accountant: Accountant, epsilon: float) -> int:
    return accountant.most_cycles(epsilon)
