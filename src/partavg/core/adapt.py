"""Intervals that change while training goes on.

An Adapt policy sees every record, and at the end of cycles says which Schedule comes next. All it
remembers is in `notes`, which are saved with the workers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from partavg.core.arguments import check_whole
from partavg.core.rates import nearest
from partavg.core.schedule import Schedule
from partavg.registry import Names

Notes = dict[str, Any]


@runtime_checkable
class Adapt(Protocol):
    """Decides the next schedule."""

    measures: ClassVar[bool]
    """Whether it needs `notes["apart"]`, the discrepancy of each part before its averaging."""
    heeds_loss: ClassVar[bool]
    """Whether it must `see` every step."""

    def first(self, schedule: Schedule) -> Schedule:
        """The schedule to begin with, where the recipe gives `schedule`."""
        ...

    def see(self, notes: Notes, loss: Tensor, lr: float) -> None:
        """Take note of a step: its mean loss and its learning rate."""
        ...

    def next(self, notes: Notes, step: int, now: Schedule, given: Schedule, lr: float) -> Schedule:
        """The schedule after a cycle that ends with `step`: `now`, or another that starts there.

        `given` is the recipe's, `lr` the learning rate of the next step.
        """
        ...


def is_warm_up(adapt: Adapt | None, schedule: Schedule, given: Schedule) -> bool:
    """Whether a schedule is what a policy that says `warms_up` puts before the one given.

    Averages are taken as they are then, without outer steps.
    """
    if adapt is None or not getattr(adapt, "warms_up", False):
        return False
    return schedule != given and schedule == adapt.first(given)


def recut(given: Schedule, interval: int, start: int) -> Schedule:
    """The given schedule with another interval: periodic and partial averaging stay what they are.

    Offsets keep their place in the interval, and synchronous averaging is of one part.

    >>> recut(Schedule.partial(8), 3, 40)
    Schedule(interval=3, parts=3, shuffle=None, start=40, multiples=(), offsets=())
    >>> recut(Schedule(8, offsets=(2, 6, 6)), 4, 40).offsets
    (1, 3, 3)
    """
    if given.offsets and interval > 1:
        moved = tuple(offset * interval // given.interval for offset in given.offsets)
        return replace(given, interval=interval, start=start, multiples=(), offsets=moved)
    most = interval if given.parts == given.interval else min(given.parts, interval)
    parts = next(parts for parts in range(most, 0, -1) if interval % parts == 0)
    return replace(given, interval=interval, parts=parts, start=start, multiples=(), offsets=())


@dataclass(frozen=True, slots=True)
class PostLocal:
    """Synchronous SGD up to a step, then the interval given (Lin, Stich, Patel, Jaggi, 2020).

    Outer steps, and a `mix`, begin with the interval given.
    """

    until: int
    measures: ClassVar[bool] = False
    heeds_loss: ClassVar[bool] = False
    warms_up: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("until", self.until, 0)

    def first(self, schedule: Schedule) -> Schedule:
        """Average everything after every step."""
        return recut(schedule, 1, 0) if self.until else schedule

    def see(self, notes: Notes, loss: Tensor, lr: float) -> None:
        """Nothing to note."""

    def next(self, notes: Notes, step: int, now: Schedule, given: Schedule, lr: float) -> Schedule:
        """The interval given, once its time has come."""
        if now.interval == given.interval or step < self.until:
            return now
        return replace(given, start=step)


@dataclass(frozen=True, slots=True)
class AdaComm:
    """τ ← ⌈τ₀ √((η₀/η) (F/F₀))⌉ after every `block` steps (Wang, Joshi, 2019).

    F is the mean mini-batch loss of the last cycle, F₀ that of the first step, η₀ the highest rate
    so far. At a rate that stays, τ is halved where the rule does not shrink it; where the rate has
    decayed since the last decision the rule is taken as it is, and τ may grow. Changes wait for the
    end of a cycle and of a warm-up.
    """

    block: int = 100
    measures: ClassVar[bool] = False
    heeds_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("block", self.block)
        if self.block < 1:
            raise ValueError(f"a block of {self.block} steps never ends: use 1 or more")

    def first(self, schedule: Schedule) -> Schedule:
        """The schedule given."""
        return schedule

    def see(self, notes: Notes, loss: Tensor, lr: float) -> None:
        """Add up the losses of a cycle."""
        if "first" not in notes:
            notes |= {"first": loss, "lr": 0.0, "sum": loss * 0, "count": 0, "decided": 0}
        notes["lr"], notes["last"] = max(notes["lr"], lr), lr
        notes["sum"] = notes["sum"] + loss
        notes["count"] += 1

    def next(self, notes: Notes, step: int, now: Schedule, given: Schedule, lr: float) -> Schedule:
        """Another interval if a block is over."""
        loss = float(notes["sum"]) / notes["count"]
        notes |= {"sum": notes["sum"] * 0, "count": 0}
        if step - notes["decided"] < self.block or lr > notes["last"] or not lr > 0:
            return now
        decayed = lr < (notes["rate"] if "rate" in notes else notes["lr"])
        notes |= {"decided": step, "rate": lr}
        ratio = notes["lr"] / lr * loss / max(float(notes["first"]), 1e-12)
        interval = math.ceil(given.interval * math.sqrt(max(ratio, 0.0)))
        if interval >= now.interval and not decayed:
            interval = now.interval // 2
        interval = max(1, interval)
        return now if interval == now.interval else recut(given, interval, step)


@dataclass(frozen=True, slots=True)
class FedLAMA:
    """Parts whose workers hardly differ are averaged in every `phi`-th cycle only.

    After every `phi` cycles the parts are sorted by their discrepancy per parameter; the least of
    them wait, up to and with the one where their share of all discrepancy reaches the share of the
    traffic that the others make, as in the author's code (Lee, Zhang, Avestimehr, 2023). A
    partition by layer gives layers their own intervals.
    """

    phi: int = 2
    measures: ClassVar[bool] = True
    heeds_loss: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("phi", self.phi)
        if self.phi < 2:
            raise ValueError(f"phi {self.phi} changes nothing: use 2 or more")

    def first(self, schedule: Schedule) -> Schedule:
        """Every part in every cycle."""
        if schedule.parts < 2:
            raise ValueError(
                f"fedlama needs parts to tell apart, and there is {schedule.parts}: use partial "
                f"averaging, for example by layer"
            )
        return schedule

    def see(self, notes: Notes, loss: Tensor, lr: float) -> None:
        """The loop notes the discrepancies."""

    def next(self, notes: Notes, step: int, now: Schedule, given: Schedule, lr: float) -> Schedule:
        """Sort the parts anew, when all of them were averaged in the cycle that ends."""
        if (step - now.start) // now.interval % self.phi:
            return now
        apart, sizes = notes["apart"].tolist(), notes["sizes"]
        waiting = _least(apart, sizes)
        multiples = tuple(self.phi if part in waiting else 1 for part in range(now.parts))
        return replace(now, start=step, multiples=multiples)


def _least(apart: list[float], sizes: list[int]) -> set[int]:
    """The parts that may wait: until their share of the discrepancy is the others' of the size."""
    order = sorted(range(len(sizes)), key=lambda part: apart[part] / sizes[part])
    waiting: set[int] = set()
    seen = size = 0.0
    for part in order:
        seen += apart[part] / max(sum(apart), 1e-300)
        size += sizes[part] / sum(sizes)
        waiting.add(part)
        if seen >= 1 - size:
            break
    return waiting


def fixed(decays: tuple[int, ...], scale: Fraction) -> None:
    """The interval stays."""


def post_local(decays: tuple[int, ...], scale: Fraction, *, until: int = 0) -> Adapt:
    """Synchronous up to step `until`; 0 takes the first decay of the learning rate."""
    if until < 0:
        raise ValueError(f"post_local until step {until} makes no sense: use 1 or more")
    if not until and not decays:
        raise ValueError(
            "post_local changes at the first decay of the learning rate, and there is none: give "
            "adapt.until or an lr_schedule that decays"
        )
    return PostLocal(max(1, nearest(until, scale)) if until else decays[0])


def adacomm(decays: tuple[int, ...], scale: Fraction, *, block: int = 100) -> Adapt:
    """Shorter intervals as the loss falls, longer ones as the rate does."""
    return AdaComm(max(1, nearest(block, scale)) if block > 0 else block)


def fedlama(decays: tuple[int, ...], scale: Fraction, *, phi: int = 2) -> Adapt:
    """Longer intervals for parts that hardly differ."""
    return FedLAMA(phi)


ADAPTS: Names[Callable[..., Adapt | None]] = Names(
    "adapt",
    {
        "adacomm": adacomm,
        "fedlama": fedlama,
        "fixed": fixed,
        "post_local": post_local,
    },
)
