"""Which parts are averaged after which step."""

from dataclasses import dataclass

import numpy as np

from partavg.core.seeds import fold
from partavg.sentences import whole_number


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every part is averaged once in `interval` steps; one part every `interval / parts` steps.

    The i-th averaging (i = 1, 2, …) takes part i mod parts, which for partial averaging is the
    paper's order: after step k, part k mod τ. With a `shuffle` seed the order is drawn anew for
    every cycle. Counting begins after step `start`. A part with a number n in `multiples` takes
    part in every n-th cycle only.

    >>> partial = Schedule.partial(3)
    >>> [partial(step) for step in (1, 2, 3, 4)]
    [(1,), (2,), (0,), (1,)]
    >>> periodic = Schedule.periodic(3)
    >>> [periodic(step) for step in (1, 2, 3, 4)]
    [(), (), (0,), ()]
    """

    interval: int
    parts: int = 1
    shuffle: int | None = None
    start: int = 0
    multiples: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("interval", "parts", "start"):
            whole_number(getattr(self, name), name)
        if self.shuffle is not None:
            whole_number(self.shuffle, "shuffle", 0)
        if self.interval < 1:
            raise ValueError(f"interval {self.interval} is below 1: use 1 for synchronous SGD")
        if self.parts < 1 or self.interval % self.parts:
            divisors = [str(p) for p in range(1, self.interval + 1) if self.interval % p == 0]
            choices = " or ".join(filter(None, [", ".join(divisors[:-1]), divisors[-1]]))
            raise ValueError(
                f"interval {self.interval} cannot be cut into {self.parts} parts: "
                f"parts must divide the interval; use {choices}"
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

    def __call__(self, step: int) -> tuple[int, ...]:
        """The parts due after step 1, 2, …: none or one."""
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

    def cycle_ends(self, step: int) -> bool:
        """Whether a cycle is complete after a step."""
        return step > self.start and (step - self.start) % self.interval == 0
