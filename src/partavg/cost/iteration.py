"""What an averaging plan costs in an iteration."""

import warnings
from collections import Counter
from dataclasses import dataclass
from math import inf

from partavg.core.plan import check_delay
from partavg.core.schedule import Schedule
from partavg.core.wire_formats import WIRE_FORMATS
from partavg.cost.network import Network


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained: the size of the model, and the time a step takes without communication."""

    parameters: int
    step: float
    """Seconds."""
    bytes_per_number: float = WIRE_FORMATS["full"].bytes_per_number
    """In a message, a number being a parameter."""

    def __post_init__(self) -> None:
        if self.parameters < 1:
            raise ValueError(f"a model of {self.parameters} parameters is none: use 1 or more")
        if not 0 < self.step < inf:
            raise ValueError(f"a step of {self.step} s is none: use more than 0")

    @property
    def width(self) -> float:
        """The old name of `bytes_per_number`."""
        said = "width is called bytes_per_number; the old name goes with 0.3"
        warnings.warn(said, DeprecationWarning, stacklevel=2)
        return self.bytes_per_number

    @property
    def size(self) -> float:
        """Bytes of the whole model in messages."""
        return self.parameters * self.bytes_per_number


@dataclass(frozen=True, slots=True)
class Cost:
    """A plan and what it costs, per worker and iteration, in bytes and seconds."""

    schedule: Schedule
    delay: int
    traffic: float
    """Bytes sent; as many are received."""
    messages: float
    """All-reduces."""
    exchanging: float
    """Seconds for which something is on the way."""
    waiting: float
    """Seconds of them that training stands still."""
    step: float

    @property
    def seconds(self) -> float:
        """An iteration: the step and the wait."""
        return self.step + self.waiting

    @property
    def hidden(self) -> float:
        """The share of the exchange during which training goes on."""
        return 1 - self.waiting / self.exchanging

    @property
    def name(self) -> str:
        """What the plan is called."""
        interval, parts = self.schedule.interval, self.schedule.parts
        if interval == 1:
            name = "synchronous"
        elif parts == 1:
            name = "periodic"
        else:
            even = parts == len(set(self.schedule.offsets) or range(parts))
            name = "partial" if parts == interval and even else f"{parts} parts"
        return f"{name}, overlapped" if self.delay else name


def cost(workload: Workload, network: Network, schedule: Schedule, delay: int = 0) -> Cost:
    """What a plan costs.

    In τ steps each of P parts is exchanged once, which takes T(L/P). With a delay D, training goes
    on for D steps meanwhile, but not beyond the next exchange, τ/P steps later, which has to wait
    for this one: an iteration takes t + (P/τ) max(0, T(L/P) − min(D, τ/P) t). Where offsets say
    when each part is due, those of one step go one after another, and it is as far as it is to the
    next step with any.

    >>> wan = Network(workers=4, bandwidth=12.5e6)
    >>> partial = cost(Workload(10**7, step=0.7), wan, Schedule.partial(8), delay=1)
    >>> round(partial.exchanging, 3), round(partial.waiting, 3), round(partial.seconds, 3)
    (0.636, 0.0, 0.7)
    """
    check_delay(delay, schedule)
    if schedule.offsets:
        return _staggered(workload, network, schedule, delay)
    part = workload.size / schedule.parts
    apart = schedule.interval // schedule.parts
    duration = network.seconds(part)
    covered = min(delay, apart) * workload.step
    return Cost(
        schedule,
        delay,
        traffic=network.traffic(part) / apart,
        messages=1 / apart,
        exchanging=duration / apart,
        waiting=max(0.0, duration - covered) / apart,
        step=workload.step,
    )


def _staggered(workload: Workload, network: Network, schedule: Schedule, delay: int) -> Cost:
    """What a plan costs whose parts are due at offsets."""
    interval, part = schedule.interval, workload.size / schedule.parts
    duration = network.seconds(part)
    together = sorted(Counter(schedule.offsets).items())
    following = [step for step, _ in together[1:]] + [together[0][0] + interval]
    waits = [
        max(0.0, parts * duration - min(delay, following[n] - step) * workload.step)
        for n, (step, parts) in enumerate(together)
    ]
    return Cost(
        schedule,
        delay,
        traffic=network.traffic(part) * schedule.parts / interval,
        messages=schedule.parts / interval,
        exchanging=duration * schedule.parts / interval,
        waiting=sum(waits) / interval,
        step=workload.step,
    )
