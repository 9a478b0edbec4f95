"""What the study of language models compares: tasks, methods, and the settings that are tried."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import partavg
from partavg.solvers import SOLVERS

LOCAL = {"beta2": 0.95, "weight_decay": 0.1}
RATES = (1e-3, 2e-3, 4e-3, 8e-3)
MUON_RATES = (1e-2, 2e-2, 4e-2, 8e-2)
OUTER = ((0.7, 0.9), (0.7, 0.6), (1.0, 0.3))
"""Outer rates and momenta that are tried at every rate; 1 and 0 would be no outer step at all."""
MORE_OUTER = ((1.0, 0.6), (1.0, 0.9))
"""Those that are tried at the best rate, so that the best of the others is not at an edge."""

Setting = tuple[float, ...]
"""A rate; with an outer optimizer its rate and momentum, too."""


@dataclass(frozen=True)
class Task:
    """Who trains on what, how often the whole model is averaged, and how large it is."""

    workers: int = 8
    interval: int = 32
    shares: str = "even"
    size: str = "3m"

    def __str__(self) -> str:
        size = "" if self.size == "3m" else f", {self.size}"
        return f"{self.workers} workers, interval {self.interval}, {self.shares} shares{size}"


BASE = Task()
OTHERS = (
    Task(interval=96), Task(interval=256), Task(workers=4), Task(workers=16),
    Task(shares="by rating"),
)  # fmt: skip
SMALL = Task(size="tiny")
"""A smaller model, which two cores can train: all methods and settings."""
LARGE = Task(size="49m")
"""A larger model, with what was best for the small one at half its rate; there is time for one."""


@dataclass(frozen=True)
class Method:
    """How workers step and average."""

    local: str = "adamw"
    parts: int | None = 1
    """None: as many as the interval has steps."""
    partition: str = "channel"
    outer: bool = False
    delay: int = 0
    mix: float | None = None
    synchronous: bool = False

    @property
    def rates(self) -> tuple[float, ...]:
        """Those that are tried."""
        return MUON_RATES if self.local == "muon" else RATES

    def settings(self) -> list[Setting]:
        """What is tried first: rates, and outer rates and momenta."""
        if not self.outer:
            return [(rate,) for rate in self.rates]
        return [(rate, *outer) for rate, outer in product(self.rates, OUTER)]

    def more(self, best: Setting) -> list[Setting]:
        """What is tried next to the best of these."""
        return [(best[0], *outer) for outer in MORE_OUTER] if self.outer and best else []

    def near(self, best: Setting) -> list[Setting]:
        """What is tried in another task: settings that differ in one number, by a step."""
        if not best:
            return []
        place = self.rates.index(best[0])
        close = [(rate, *best[1:]) for rate in self.rates[max(0, place - 1) : place + 2]]
        return close + [(best[0], *o) for o in OUTER if self.outer and o != best[1:]]

    def at_edge(self, best: Setting) -> bool:
        """Whether something beyond a setting, which nobody tried, may be better."""
        return best[0] in (self.rates[0], self.rates[-1]) or (self.outer and best[2] == 0.9)

    def simulation(self, task: Task, setting: Setting) -> dict[str, Any]:
        """The arguments that it sets."""
        fast = {"bfloat16": True} if self.local == "muon" else {}
        solver = SOLVERS[self.local](**LOCAL, **fast)
        if self.outer:
            rate, momentum = setting[1:]
            solver = partavg.Outer(partavg.SGD(momentum, nesterov=True), rate, base=solver)
        interval = 1 if self.synchronous else task.interval
        parts = self.parts or interval
        spread = partavg.Schedule.streaming(interval, parts, delay=self.delay)
        schedule = spread if self.delay else partavg.Schedule(interval, parts)
        kept = {"partition": self.partition, "delay": self.delay, "mix": self.mix}
        return {"solver": solver, "schedule": schedule, **kept}


METHODS = {
    "synchronous": Method(synchronous=True),
    "periodic": Method(),
    "partial": Method(parts=None),
    "SPARTA": Method(parts=None, partition="fresh"),
    "DiLoCo": Method(outer=True),
    "Streaming DiLoCo": Method(outer=True, parts=4, partition="strided", delay=2, mix=0.5),
    "partial, outer Nesterov": Method(parts=None, outer=True),
}
METHODS |= {
    "Muon, periodic": replace(METHODS["periodic"], local="muon"),
    "Muon, partial": replace(METHODS["partial"], local="muon"),
    "MuLoCo": replace(METHODS["DiLoCo"], local="muon"),
    "Muon, partial, outer Nesterov": replace(METHODS["partial, outer Nesterov"], local="muon"),
}
FEW = ("synchronous", "periodic", "partial", "DiLoCo", "partial, outer Nesterov")
"""Those that other tasks than the first are for."""
