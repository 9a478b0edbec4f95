"""Learning rates as functions of the step."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from partavg.registry import Names
from partavg.sentences import real_number, whole_number


@dataclass(frozen=True, slots=True)
class StepDecay:
    """`base` times `factor` for every one of the steps `at` that is over.

    The first `warmup` steps climb to it in equal steps.

    >>> [StepDecay(1.0, warmup=2, at=(4,))(step) for step in (1, 2, 3, 4, 5)]
    [0.5, 1.0, 1.0, 1.0, 0.1]
    """

    base: float
    warmup: int = 0
    at: tuple[int, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        real_number(self.base, "base")
        whole_number(self.warmup, "warmup", 0)
        for step in (*self.at, self.factor):
            real_number(step, "a decay by, or after step,")
        if not self.factor > 0:
            raise ValueError(f"factor {self.factor} stops training: use a factor above 0")
        if list(self.at) != sorted(self.at) or min(self.at, default=0) < 0:
            raise ValueError(f"decays at steps {list(self.at)}: name them in rising order")

    def __call__(self, step: int) -> float:
        """The rate of a step, counted from 1."""
        over = sum(step > end for end in self.at)
        return self.base * self.factor**over * _climb(step, self.warmup)


@dataclass(frozen=True, slots=True)
class Cosine:
    """`base` falls to `floor` · base over `steps` as half a cosine, after a linear warm-up.

    >>> [round(Cosine(1.0, steps=5, warmup=1)(step), 2) for step in (1, 2, 3, 4, 5)]
    [1.0, 1.0, 0.85, 0.5, 0.15]
    """

    base: float
    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        real_number(self.base, "base")
        whole_number(self.steps, "steps", 1)
        whole_number(self.warmup, "warmup", 0)
        real_number(self.floor, "floor")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor {self.floor} is outside [0, 1]: it is a share of the rate")

    def __call__(self, step: int) -> float:
        """The rate of a step, counted from 1."""
        if step <= self.warmup:
            return self.base * _climb(step, self.warmup)
        gone = (step - 1 - self.warmup) / max(1, self.steps - self.warmup)
        return self.base * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * gone)) / 2)


def _climb(step: int, warmup: int) -> float:
    return min(1.0, step / warmup) if warmup else 1.0


Rate = Callable[[int], float]
"""The learning rate of a step, counted from 1."""


def nearest(value: float | int, unit: Fraction) -> int:
    """`value` units as a whole number of steps, by exact arithmetic.

    >>> nearest(300, Fraction(50_000, 128 * 32))  # epochs of CIFAR-10 with 128 workers
    3662
    """
    return math.floor(Fraction(str(value)) * unit + Fraction(1, 2))


Unit = Literal["steps", "epochs"]
Lengths = Mapping[str, Fraction]
"""How many steps each unit has."""


def constant(
    base: float, steps: int, lengths: Lengths, *, warmup: float = 0.0, unit: Unit = "steps"
) -> Rate:
    """One rate, after a warm-up."""
    return StepDecay(base, _warmup(warmup, lengths[unit]))


def step(
    base: float,
    steps: int,
    lengths: Lengths,
    *,
    at: tuple[float, ...] = (),
    factor: float = 0.1,
    warmup: float = 0.0,
    unit: Unit = "steps",
) -> Rate:
    """`factor` times the rate after each of the times `at`."""
    ends = tuple(nearest(end, lengths[unit]) for end in at)
    return StepDecay(base, _warmup(warmup, lengths[unit]), ends, factor)


def cosine(
    base: float,
    steps: int,
    lengths: Lengths,
    *,
    floor: float = 0.0,
    warmup: float = 0.0,
    unit: Unit = "steps",
) -> Rate:
    """Half a cosine from the rate to `floor` times the rate."""
    return Cosine(base, steps, _warmup(warmup, lengths[unit]), floor)


def _warmup(value: float, length: Fraction) -> int:
    if value < 0:
        raise ValueError(f"a warm-up of {value} makes no sense: use 0 for none")
    return nearest(value, length)


RATES: Names[Callable[..., Rate]] = Names(
    "lr_schedule", {"constant": constant, "cosine": cosine, "step": step}
)
