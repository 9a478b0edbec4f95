"""What ranks tell each other with every message: who is here, how far, how fast, and how well."""

import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
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
    "has met with trouble of its own",
)
"""What a rank may be at when it sends something."""
AVERAGES, LEAVES, STOPS = 0, 1, len(DEEDS) - 1


class RankReport(NamedTuple):
    """What a rank says of itself."""

    step: float
    deed: float
    """What it does there, its place in `DEEDS`."""
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

    def __init__(
        self, ranks: Sequence[int], mine: int, weights: Sequence[float] | None = None
    ) -> None:
        self._ranks, self._mine = ranks, mine
        self._weights = torch.tensor(weights or [1 / len(ranks)] * len(ranks))
        self._stragglers, self._last = Stragglers(ranks), 0
        self._waiting: Tensor | None = None
        self._resumed = perf_counter()
        self.worked = dict.fromkeys(ranks, 0.0)
        """Seconds that each rank worked between messages."""
        self.waited = dict.fromkeys(ranks, 0.0)
        """Seconds that each rank was ready before the slowest."""
        self.behind = 0.0
        """The same of this rank and the last message."""
        self.clock: Callable[[], float] | None = None
        """Seconds of own work, where the host's clock does not know them."""
        self.step = 0
        self.deed = AVERAGES
        self.trouble = ""
        """What makes this rank stop, if something does: the others hear of it, and stop as well."""
        self.ask: Callable[[int], str] = lambda place: self.trouble
        """The trouble of a rank, by its place among these: a message has no room for words."""
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
        step, deed, fault, seconds = own
        step.fill_(self.step % _WRAP)
        deed.fill_(STOPS if self.trouble else self.deed)
        faulty = ~body.sum().isfinite()
        fault.copy_(faulty * (1 + self.blame))
        seconds.fill_(self.clock() if self.clock else perf_counter() - self._resumed)
        if self.strict and reads_late(message):
            body.masked_fill_(faulty, 0)
        return own

    def read(self, entries: Float[Tensor, "_"]) -> None:
        """Raise an error that names the rank if something is wrong.

        On a GPU the entries of the message before are read, so that the host need not wait.
        """
        late = reads_late(entries)
        if late:
            self.catch_up()
        self._waiting = entries.clone() if late else entries
        if not late:
            self.catch_up()

    def catch_up(self) -> None:
        """Read what was left for later."""
        now, self._waiting = self._waiting, None
        if now is not None:
            self.check([RankReport(*entry) for entry in now.view(len(self._ranks), -1).tolist()])

    def without_faulty_(self, total: Float[Tensor, "_"], entries: Float[Tensor, "_"]) -> None:
        """Where faults are read late, make a sum that of the other ranks: faulty ones sent 0."""
        if self.strict and reads_late(entries):
            weights = self._weights = self._weights.to(total)
            total.div_(1 - weights @ self._faulty(entries).to(total))

    def without_faulty_rows(
        self, rows: Float[Tensor, "m l"], own: Float[Tensor, "1 l"], entries: Float[Tensor, "_"]
    ) -> Float[Tensor, "m l"]:
        """Where faults are read late, one's own row in place of faulty ones."""
        if not reads_late(entries):
            return rows
        return torch.where(self._faulty(entries)[:, None], own, rows)

    def _faulty(self, entries: Float[Tensor, "_"]) -> Bool[Tensor, "m"]:
        return entries.view(len(self._ranks), -1)[:, RankReport._fields.index("fault")] > 0

    def check(self, entries: Sequence[RankReport]) -> None:
        """Raise an error that names a rank that is elsewhere, or sends what is not finite."""
        for place, entry in enumerate(entries):
            if entry.deed == STOPS and (self.strict or not self.trouble):
                said = self.ask(place)
                self.trouble = (
                    said if said.startswith("rank ") else f"rank {self._ranks[place]}: {said}"
                )
                if self.strict:
                    raise ValueError(self.trouble)
        first = entries[0]
        for rank, entry in zip(self._ranks, entries, strict=True):
            elsewhere = (entry.step, entry.deed) != (first.step, first.deed)
            if elsewhere and not self.trouble:
                raise ValueError(
                    f"rank {self._ranks[0]} {_deed(first)}, rank {rank} {_deed(entry)}: all ranks "
                    f"must take the same steps and ask for the consensus together; if some have "
                    f"fewer batches, attach with uneven=True, if a GradScaler skips some, with "
                    f"scaler="
                )
        faulty = {int(entry.fault) - 1 for entry in entries if entry.fault}
        if faulty and self.strict:
            names = ", ".join(map(str, sorted(faulty)))
            raise NotFinite(
                f"rank {names} sent a number that is not finite after step {first.step:.0f}: the "
                f"other ranks did not take it; lower the learning rate"
            )
        self.blame = min(faulty, default=self._ranks[self._mine])
        self._count([entry.seconds for entry in entries])
        self._watch([entry.seconds for entry in entries])
        self._resumed = perf_counter()

    def _count(self, seconds: Sequence[float]) -> None:
        """Add up how long ranks worked, and were ready before the slowest."""
        for rank, own in zip(self._ranks, seconds, strict=True):
            self.worked[rank] += own
            self.waited[rank] += max(seconds) - own
        self.behind = max(seconds) - seconds[self._mine]

    def _watch(self, seconds: Sequence[float]) -> None:
        """Warn once of a rank that all others wait for."""
        passed = max(1, self.step - self._last)
        self._last = self.step
        warning = self._stragglers.take([each / passed for each in seconds])
        if warning and self._mine == 0:
            warnings.warn(warning, stacklevel=2)


def _deed(entry: RankReport) -> str:
    return f"{DEEDS[int(entry.deed)]} after step {entry.step:.0f}"


def reads_late(message: Tensor) -> bool:
    """Whether what came with a message is looked at with the next one."""
    return message.is_cuda
