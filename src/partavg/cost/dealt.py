"""The workers of a simulation, dealt over ranks: rows, memory and time of each."""

from collections import Counter
from dataclasses import dataclass

import torch

from partavg.core.abilities import abilities
from partavg.core.arguments import check_whole
from partavg.core.layout import Layout
from partavg.cost.iteration import Cost
from partavg.cost.memory import flying
from partavg.cost.network import Network
from partavg.cost.setting import Setting

_LOSS = 8
"""Bytes of a worker's loss, which all ranks tell each other after every step."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """So many workers on so many ranks, as evenly as possible: each row is a worker.

    They may be the active ones of more clients, who are dealt in the same way.

    >>> shares = Dealt(workers=130, ranks=4)
    >>> shares.rows, f"{shares.idle:.1%}"
    ((33, 33, 32, 32), '1.5%')
    >>> shares.said
    '130 workers on 4 ranks (2 of 33 rows, 2 of 32)'
    """

    workers: int
    ranks: int
    clients: int | None = None

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, 1)
        check_whole("ranks", self.ranks, 2)
        if self.clients is not None and check_whole("clients", self.clients) < self.workers:
            raise ValueError(
                f"{self.workers} of {self.clients} clients cannot be active: use as many clients "
                f"as workers, or more"
            )
        if self.ranks > self.workers:
            raise ValueError(
                f"{self.ranks} ranks cannot share {self.workers} workers: use {self.workers} ranks "
                f"at most"
            )

    @property
    def rows(self) -> tuple[int, ...]:
        """How many workers each rank has."""
        each, more = divmod(self.workers, self.ranks)
        return (each + 1,) * more + (each,) * (self.ranks - more)

    @property
    def idle(self) -> float:
        """The share of all ranks' time that passes waiting for those with a row more."""
        return 1 - self.workers / (self.ranks * self.rows[0])

    @property
    def said(self) -> str:
        """The rows of the ranks, in words."""
        counted = Counter(self.rows).items()
        rows = ", ".join(f"{ranks} of {rows}" for rows, ranks in counted)
        rows = rows.replace(",", " rows,", 1) if len(counted) > 1 else f"{self.rows[0]} rows each"
        return f"{self.workers} workers on {self.ranks} ranks ({rows})"

    def step(self, seconds: float, network: Network) -> float:
        """A step of the rank with the most rows, of one that takes so long for all workers.

        After it all ranks gather the losses, which is half of an all-reduce.
        """
        told = network.seconds(_LOSS * self.rows[0] * self.ranks) / 2
        return seconds * self.rows[0] / self.workers + told

    def efficiency(self, seconds: float, plan: Cost) -> float:
        """How much of the ranks' time a plan uses: 1 where they are as many times as fast."""
        return seconds / (self.ranks * plan.seconds)

    def memory(self, setting: Setting, shared: int, local: int, plan: Cost) -> float:
        """Bytes of the most rows: parameters, gradients, the solver's memory, what is sent."""
        own, common = _entries(setting)
        each = (2 + own) * (shared + local)
        sent = flying(plan.schedule, plan.delay) * shared
        numbers = self.rows[0] * (each + sent) + common * (shared + local) + sent
        return numbers * setting.width

    def bank(self, setting: Setting, shared: int, local: int) -> int:
        """Bytes that the clients whose home is on a rank keep there at most, while not active.

        Local parameters count with the memory that goes with them.
        """
        assert self.clients is not None
        assert setting.solver is not None
        own, _ = _entries(setting)
        kept = len(abilities(setting.solver).per_client)
        numbers = kept * (shared + local) + (1 + own - kept) * local
        return -(-self.clients // self.ranks) * numbers * setting.width


def _entries(setting: Setting) -> tuple[int, int]:
    """Numbers per parameter that a solver remembers of each worker, and of all together."""
    assert setting.solver is not None
    memory = setting.solver.init(torch.empty(2, 0), Layout((), ()))
    common = sum(len(entry) == 1 for entry in memory.values())
    return len(memory) - common, common
