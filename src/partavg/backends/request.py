"""What is asked of a run, as far as it must go together."""

from dataclasses import dataclass
from typing import Any

from partavg.attacks.attack import Attack
from partavg.backends.client_weights import Weights
from partavg.backends.cutting import Cut
from partavg.core.abilities import name_of
from partavg.core.adapt import Adapt
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.core.participation import Participation
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A simulation or a federation before anything of it is built.

    `called` is what errors call the solver, where its class says less to the user.
    """

    clients: int
    schedule: Schedule
    solver: Solver
    participation: Participation | None = None
    partition: Cut = "channel"
    weights: Weights = "uniform"
    buffers: str = "part"
    delay: int = 0
    mix: float | None = None
    wire: str = "full"
    uneven: bool = False
    adapt: Adapt | None = None
    aggregate: Aggregate = weighted_sum
    attack: Attack | None = None
    privacy: Any = None
    called: str = ""

    @property
    def solver_name(self) -> str:
        """As errors have it."""
        return self.called or f"solver {name_of(self.solver)}"

    @property
    def puts_away(self) -> bool:
        """Whether models rest while others train."""
        return self.participation is not None and self.participation.puts_away

    @property
    def collects(self) -> bool:
        """Whether messages are needed whole, and not only their sum."""
        attacks = self.attack and self.attack.lies and self.attack.attackers(self.clients, seed=0)
        return self.aggregate is not weighted_sum or bool(attacks)
