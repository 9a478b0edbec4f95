"""Which parts are averaged after which step."""

from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np

from partavg.core.arguments import check_whole
from partavg.core.seeds import fold
from partavg.sentences import shown

_MOST = 12  # numbers of parts that an error lists
_MOST_LISTED = 10**6  # parts whose offsets are made here


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every part is averaged once in `interval` steps; one part every `interval / parts` steps.

    The i-th averaging (i = 1, 2, …) takes part i mod parts, which for partial averaging is the
    paper's order: after step k, part k mod τ. With a `shuffle` seed the order is drawn anew for
    every cycle. Counting begins after step `start`. A part with a number n in `multiples` takes
    part in every n-th cycle only.

    With `offsets`, one for each part, part j is averaged after the steps k ≡ offsets[j] modulo the
    interval: then parts need not divide the interval, and several may be due after one step.

    >>> partial = Schedule.partial(3)
    >>> [partial(step) for step in (1, 2, 3, 4)]
    [(1,), (2,), (0,), (1,)]
    >>> periodic = Schedule.periodic(3)
    >>> [periodic(step) for step in (1, 2, 3, 4)]
    [(), (), (0,), ()]
    >>> streaming = Schedule(4, offsets=(1, 3, 3))
    >>> [streaming(step) for step in (1, 2, 3, 4, 5)]
    [(0,), (), (1, 2), (), (0,)]
    """

    interval: int
    parts: int = 1
    shuffle: int | None = None
    start: int = 0
    multiples: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._check_offsets()
        check_whole("interval", self.interval)
        check_whole("parts", self.parts)
        check_whole("start", self.start, 0)
        if self.shuffle is not None:
            check_whole("shuffle", self.shuffle)
        if self.interval < 1:
            raise ValueError(f"interval {self.interval} is below 1: use 1 for synchronous SGD")
        if self.parts < 1 or (self.interval % self.parts and not self.offsets):
            hint = ", or offsets that say when each is due" if self.parts > 1 else ""
            raise ValueError(
                f"interval {self.interval} cannot be cut into {self.parts} parts: "
                f"parts must divide the interval; use {_divisors(self.interval)}{hint}"
            )
        self._check_multiples()

    def _check_offsets(self) -> None:
        """Take offsets as they are counted: from 0 to below the interval, one for each part."""
        if not isinstance(self.offsets, tuple | list):
            raise ValueError(f"offsets {shown(self.offsets)}: give a step for each part")
        if not self.offsets:
            return
        if self.shuffle is not None:
            raise ValueError(
                "a schedule that is shuffled draws when each part is due, and offsets say it: "
                "leave one of them out"
            )
        interval = check_whole("interval", self.interval, 1)
        for offset in self.offsets:
            if not 0 <= check_whole("offset", offset) <= interval:
                raise ValueError(
                    f"offset {offset} is no step of an interval of {interval}: use 0 to {interval}"
                )
        if check_whole("parts", self.parts) not in (1, len(self.offsets)):
            raise ValueError(
                f"{len(self.offsets)} offsets for {self.parts} parts: give one for each part"
            )
        object.__setattr__(self, "parts", len(self.offsets))
        object.__setattr__(self, "offsets", tuple(int(o) % interval for o in self.offsets))

    def _check_multiples(self) -> None:
        if not isinstance(self.multiples, tuple | list):
            raise ValueError(f"multiples {shown(self.multiples)}: give a number for each part")
        for multiple in self.multiples:
            check_whole("multiple", multiple, 1)
        if len(self.multiples) not in (0, self.parts):
            raise ValueError(
                f"{len(self.multiples)} multiples for {self.parts} parts: give one for each part"
            )

    @classmethod
    def synchronous(cls) -> "Schedule":
        """Average the whole model after every step."""
        return cls(1)

    @classmethod
    def periodic(cls, interval: int) -> "Schedule":
        """Average the whole model every `interval` steps (FedAvg, local SGD)."""
        return cls(interval)

    @classmethod
    def partial(cls, interval: int) -> "Schedule":
        """Average another 1/interval of the model after every step (the paper)."""
        return cls(interval, interval)

    @classmethod
    def streaming(cls, interval: int, parts: int, delay: int = 0) -> "Schedule":
        """Each part after its share of the interval, as evenly as steps allow: Streaming DiLoCo.

        Averages arrive `delay` steps after they are sent, and then these are the steps of arrival.

        >>> Schedule.streaming(10, 3).offsets, Schedule.streaming(8, 2, delay=1).offsets
        ((4, 7, 0), (3, 7))
        """
        check_whole("interval", interval, 1)
        check_whole("parts", parts, 1)
        if parts > _MOST_LISTED:
            raise ValueError(f"{parts} parts are too many to list: use up to {_MOST_LISTED}")
        if not 0 <= check_whole("delay", delay) < interval:
            raise ValueError(
                f"delay {delay} is not below the interval {interval}: a part must arrive before it "
                f"is sent again"
            )
        due = (-(-interval * (part + 1) // parts) - delay for part in range(parts))
        return cls(interval, parts, offsets=tuple(step % interval for step in due))

    def __call__(self, step: int) -> tuple[int, ...]:
        """The parts due after step 1, 2, …: none or one, or those whose offset it is."""
        check_whole("step", step)
        if self.offsets:
            return self._at_offset(step - self.start)
        averaging, early = divmod(step - self.start, self.interval // self.parts)
        if early:
            return ()
        cycle, place = divmod(averaging - 1, self.parts)
        part = (place + 1) % self.parts
        if self.shuffle is not None:
            generator = np.random.default_rng(fold(self.shuffle, "order", self.start, cycle))
            part = int(generator.permutation(self.parts)[place])
        if self.multiples and (cycle + 1) % self.multiples[part]:
            return ()
        return (part,)

    def _at_offset(self, gone: int) -> tuple[int, ...]:
        """The parts whose offset a step has, so many steps after the start."""
        cycle, place = (gone - 1) // self.interval, gone % self.interval
        every = self.multiples or (1,) * self.parts
        return tuple(
            part
            for part, offset in enumerate(self.offsets)
            if offset == place and (cycle + 1) % every[part] == 0
        )

    @property
    def gap(self) -> int:
        """The fewest steps between two averagings: none where several parts are due at once."""
        if not self.offsets:
            return self.interval // self.parts
        due = sorted(self.offsets)
        return min(b - a for a, b in pairwise([*due, due[0] + self.interval]))

    def cycle_ends(self, step: int) -> bool:
        """Whether a cycle is complete after a step."""
        return step > self.start and (step - self.start) % self.interval == 0


def _divisors(interval: int) -> str:
    """The numbers of parts that divide an interval, or the smallest of them, in words."""
    few = islice((p for p in range(1, min(interval, 10**4) + 1) if interval % p == 0), _MOST + 1)
    known = [str(parts) for parts in few]
    if len(known) > _MOST or interval > 10**4:
        return f"{', '.join(known[:_MOST])}, …"
    return " or ".join(filter(None, [", ".join(known[:-1]), known[-1]]))
