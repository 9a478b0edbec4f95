"""Averaging and nothing else, as a solver, and what of a solver only averages."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import Abilities, abilities, below
from partavg.core.layout import Layout
from partavg.core.solver import Solver, State, Step, Sync


@dataclass(frozen=True, slots=True)
class Mean:
    """Takes no steps and remembers nothing; workers take the mean of what they have."""

    abilities: ClassVar[Abilities] = Abilities(plain=True, renewed_by_averaging=True)

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """Nothing."""
        return {}

    def step_(
        self, params: Float[Tensor, "m n"], grads: Float[Tensor, "m n"], state: State, now: Step
    ) -> None:
        """Stay."""

    def encode(self, rows: Float[Tensor, "m n"], state: State, sync: Sync) -> Float[Tensor, "m l"]:
        """The parameters themselves."""
        return rows

    def decode_(
        self, rows: Float[Tensor, "m n"], total: Float[Tensor, "l"], state: State, sync: Sync
    ) -> None:
        """Take the mean."""
        rows.copy_(total)


def at_rest(solver: Solver) -> Solver:
    """The solver before its outer step begins: it averages, and keeps track of the averages."""
    rests = getattr(solver, "at_rest", None)
    rest: Solver = solver if rests is None else rests()
    return rest


def only_averaging(solver: Solver) -> Solver:
    """The solver without what steps away from the average, or keeps workers apart."""
    said, base = abilities(solver), below(solver)
    if said.outer_step and base is not None:
        return only_averaging(base)
    return Mean() if said.keeps_apart else solver
