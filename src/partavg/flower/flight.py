"""Orders on their way to clients, and the answers that come back."""

from dataclasses import dataclass
from typing import NamedTuple

from partavg.flower.messages import Order
from partavg.flower.orders import Handout
from partavg.flower.transport import Answer, Sent


class Taken(NamedTuple):
    """An answer, and what it answers."""

    client: int
    order: Order
    handout: Handout
    answer: Answer


@dataclass(slots=True)
class Flight:
    """Orders on their way to some clients.

    Answers that are no longer waited for are taken all the same, when they come: nothing piles up,
    and what the clients then have is known.
    """

    sent: Sent
    orders: dict[int, tuple[int, Order, Handout]]
    """By node: its client, and what it was told."""

    @property
    def clients(self) -> set[int]:
        """Those that have not answered."""
        return {self.orders[node][0] for node in self.sent.missing}

    def take(self, patience: float = 0.0) -> Taken | None:
        """The next answer; None if none comes in so many seconds."""
        answer = self.sent.take(patience) if self.sent.missing else None
        return Taken(*self.orders[answer.node], answer) if answer else None
