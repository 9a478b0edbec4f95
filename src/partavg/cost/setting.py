"""What is attached to a model, as far as it costs bytes."""

from dataclasses import dataclass

from partavg.core.abilities import abilities
from partavg.core.solver import Solver
from partavg.core.trial import message_length
from partavg.core.wire_formats import WIRE_FORMATS
from partavg.cost.iteration import Cost
from partavg.cost.memory import memory_beside


@dataclass(frozen=True, slots=True)
class Setting:
    """A solver on top of the user's optimizer, the kind of messages, and the model's numbers."""

    solver: Solver | None = None
    wire: str = "full"
    width: int = 4
    """Bytes of a parameter."""
    memory: str = "full"

    @property
    def bytes_per_number(self) -> float:
        """Of a message, for each parameter: some solvers send more than the parameters.

        A model of 2 bytes a number sends 2, unless sums must be exact for the solver.
        """
        longer = message_length(self.solver).per_column if self.solver else 1
        if self.wire != "full":
            return longer * WIRE_FORMATS[self.wire].bytes_per_number
        exact = longer > 1 or (self.solver and abilities(self.solver).estimates_gradients)
        return longer * (max(4, self.width) if exact else self.width)

    def beside(self, parameters: int, plan: Cost, workers: int) -> float:
        """Bytes that a rank keeps beside its model with a plan."""
        return memory_beside(
            parameters,
            plan.schedule,
            workers=workers,
            solver=self.solver,
            delay=plan.delay,
            wire=self.wire,
            memory=self.memory,
            width=self.width,
        )
