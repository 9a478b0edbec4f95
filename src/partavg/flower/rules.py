"""Who may take part in a federated run, and how long the others wait."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from partavg.scores.score import Score


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may take part, and how long the others wait."""

    clients: int
    min_clients: int
    deadline: float = 300.0
    """Seconds for one answer."""
    wait: float = 60.0
    """Seconds to wait at the start for all clients; then `min_clients` are enough."""
    first: float | None = None
    """How many answers end an exchange, a number or a fraction; all if None."""
    patience: float = 600.0
    """Seconds to wait for `min_clients` before giving up."""
    rest: float = 3600.0
    """Seconds, at most, that a client which missed deadlines in a row is not asked."""
    catch_up: str = "parts"
    """How a client that was away becomes whole: by "parts" as they come round, or one "whole"."""
    weights: str | tuple[float, ...] = "uniform"
    """By a policy, or a number per client."""
    max_samples: int = 10_000_000
    max_weight: float = 10.0
    """No client counts more than so many times the median; 0 for whatever it says."""
    max_change: float = 100.0
    """How much farther than ever a message may go; 0 for anywhere."""
    keys: Mapping[int, tuple[str, ...]] | None = None
    """The public keys that each client may have; None if nobody says."""
    evaluate_every: int = 0
    """How often clients measure models on their own test samples; 0 is never."""
    scores: tuple[Score, ...] = ()
    """What they measure beside the loss."""

    def check_samples(self, client: int, samples: int, least: int = 1, what: str = "") -> None:
        """Raise a ValueError for a number of samples that cannot be."""
        if not least <= samples <= self.max_samples:
            raise ValueError(
                f"client {client} counts {samples} {what}samples, which is not between {least} and "
                f"flower.max_samples = {self.max_samples}"
            )

    def check_key(self, client: int, key: str) -> None:
        """Raise a ValueError if a client may not have this key."""
        if self.keys is None or key in self.keys.get(client, ()):
            return
        if not key:
            raise ValueError(
                f"client {client} has no key, and flower.keys wants one: name the key of its node "
                f'in --node-config, key="…"'
            )
        raise ValueError(f"the key of client {client} is not one that flower.keys gives it")

    def enough(self, clients: int) -> int:
        """How many answers of so many clients end an exchange."""
        if self.first is None:
            return clients
        wanted = self.first if self.first >= 1 else ceil(self.first * clients)
        return min(clients, max(int(wanted), self.min_clients))

    def rest_after(self, missed: int) -> float:
        """Seconds until a client is asked again that missed so many deadlines in a row."""
        return min(self.rest, self.deadline * 2 ** min(missed - 2, 32)) if missed > 1 else 0.0
