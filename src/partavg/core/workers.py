"""All that training changes."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.layout import Layout
from partavg.core.solver import Solver, State


@dataclass(slots=True)
class Workers:
    """All that training changes. Copy it to go back, save it to resume."""

    params: Float[Tensor, "m d"]
    buffers: Float[Tensor, "m b"]
    memory: State
    """The solver's."""
    steps: Float[Tensor, "m p"]
    """Local steps of each worker since each part was last averaged."""
    lr_sum: Float[Tensor, "m p"]
    """Sum of the learning rates of those steps."""
    step: int = 0
    bytes: int = 0
    """Sent by one worker so far; as much comes back."""
    messages: int = 0
    bank: State = field(default_factory=dict)
    """What each client left behind when it was last active, where clients keep their models."""

    @classmethod
    def start(
        cls,
        params: Float[Tensor, "m d"],
        buffers: Float[Tensor, "m b"],
        layout: Layout,
        solver: Solver,
        parts: int,
    ) -> "Workers":
        """Workers before their first step."""
        clock = torch.zeros(len(params), parts, dtype=torch.float64, device=params.device)
        return cls(params, buffers, solver.init(params, layout), clock, clock.clone())

    def keep(self, clients: int) -> None:
        """Keep a row of everything for each client; all start as the first row does."""
        self.bank = {name: rows[:1].expand(clients, -1).clone() for name, rows in self._rows()}

    def swap_(self, leaving: Int[Tensor, "m"], coming: Int[Tensor, "m"]) -> None:
        """Put the rows of the clients that leave into the bank, take out those that come."""
        for name, rows in self._rows():
            self.bank[name][leaving] = rows
            rows.copy_(self.bank[name][coming])

    def _rows(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors that have a row per worker."""
        for name in ("params", "buffers", "steps", "lr_sum"):
            yield name, getattr(self, name)
        for name, tensor in self.memory.items():
            if len(tensor) == len(self.params):
                yield f"memory.{name}", tensor
