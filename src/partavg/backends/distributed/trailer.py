"""What ranks tell each other with every message: who is here, how far, how fast, and how well."""

import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from partavg.backends.stragglers import Stragglers

_WRAP = 1 << 20  # steps are sent modulo this: exact in any dtype of messages

DEEDS = (
    "averages",
    "asks for the consensus",
    "asks for the averaged model",
    "asks for the outer model",
    "averages another module",
    "loads the state of other ranks",
)
"""What a rank may be at when it sends something."""


class RankReport(NamedTuple):
    """What a rank says of itself."""

    step: float
    leaving: float
    """0 if it averages a part, or what it asks for instead, see `DEEDS`."""
    fault: float
    """1 + the rank whose numbers are not finite, 0 if there is none."""
    seconds: float
    """Of its own work since the last message."""


class NotFinite(ArithmeticError):
    """A rank met a number that is not finite; no other rank was touched by it."""


class Trailer:
    """An entry per rank behind every message, summed along with it: each rank fills in its own.

    So that all ranks know of the same trouble at the same message, and stop with the same sentence.
    """

    def __init__(self, ranks: Sequence[int], mine: int) -> None:
        self._ranks, self._mine = ranks, mine
        self._stragglers, self._last = Stragglers(ranks), 0
        self._waiting: Tensor | None = None
        self._resumed = perf_counter()
        self.step = 0
        self.leaving = 0
        self.strict = True
        """Whether a number that is not finite is an error, or left to another trailer to tell."""
        self.blame = ranks[mine]
        """The rank to name if this one's numbers are not finite."""

    @property
    def room(self) -> int:
        """Columns that the entries take."""
        return len(RankReport._fields) * len(self._ranks)

    def sign_(self, message: Float[Tensor, "_"]) -> Float[Tensor, "4"]:
        """Write one's own entry behind a message, and return it."""
        body, tail = message[: -self.room], message[-self.room :]
        own = tail.zero_().view(len(self._ranks), -1)[self._mine]
        step, leaving, fault, seconds = own
        step.fill_(self.step % _WRAP)
        leaving.fill_(self.leaving)
        fault.copy_(~body.sum().isfinite() * (1 + self.blame))
        seconds.fill_(perf_counter() - self._resumed)
        return own

    def read(self, entries: Float[Tensor, "_"]) -> None:
        """Raise an error that names the rank if something is wrong.

        On a GPU the entries of the message before are read, so that the host need not wait.
        """
        now: Tensor | None = entries
        if entries.is_cuda:
            now, self._waiting = self._waiting, entries.clone()
        if now is not None:
            self.check([RankReport(*entry) for entry in now.view(len(self._ranks), -1).tolist()])

    def check(self, entries: Sequence[RankReport]) -> None:
        """Raise an error that names a rank that is elsewhere, or sends what is not finite."""
        first = entries[0]
        for rank, entry in zip(self._ranks, entries, strict=True):
            if (entry.step, entry.leaving) != (first.step, first.leaving):
                raise ValueError(
                    f"rank {self._ranks[0]} {_deed(first)}, rank {rank} {_deed(entry)}: all ranks "
                    f"must take the same steps and ask for the consensus together"
                )
        faulty = {int(entry.fault) - 1 for entry in entries if entry.fault}
        if faulty and self.strict:
            names = ", ".join(map(str, sorted(faulty)))
            raise NotFinite(
                f"rank {names} sent a number that is not finite after step {first.step:.0f}: the "
                f"other ranks did not take it; lower the learning rate"
            )
        self.blame = min(faulty, default=self._ranks[self._mine])
        self._watch([entry.seconds for entry in entries])
        self._resumed = perf_counter()

    def _watch(self, seconds: Sequence[float]) -> None:
        """Warn once of a rank that all others wait for."""
        passed = max(1, self.step - self._last)
        self._last = self.step
        warning = self._stragglers.take([each / passed for each in seconds])
        if warning and self._mine == 0:
            warnings.warn(warning, stacklevel=2)


def _deed(entry: RankReport) -> str:
    return f"{DEEDS[int(entry.leaving)]} after step {entry.step:.0f}"
