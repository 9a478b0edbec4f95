"""A solver of your own: sign descent, pulled toward the average.

A solver is a frozen dataclass with four functions on rows. `step_` is the local update; `encode`
is what a worker sends of a part, `decode_` what it does with the weighted sum of all messages.
Here each worker moves by the sign of its gradient, and an averaging moves it half way to the mean,
which leaves workers apart: that is said in `abilities`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import partavg


@dataclass(frozen=True, slots=True)
class SignDescent:
    """x ← x − η sign(g); at an averaging x ← (1 − pull) x + pull u."""

    pull: float = 0.5
    abilities: ClassVar[partavg.Abilities] = partavg.Abilities(keeps_apart=True)

    def init(self, params: Tensor, layout: partavg.Layout) -> dict[str, Tensor]:
        """It remembers nothing."""
        return {}

    def step_(
        self, params: Tensor, grads: Tensor, state: dict[str, Tensor], now: partavg.Step
    ) -> None:
        """Move every parameter by the learning rate, downhill."""
        params.add_(grads.sign_(), alpha=-now.lr)

    def encode(self, rows: Tensor, state: dict[str, Tensor], sync: partavg.Sync) -> Tensor:
        """Send the parameters."""
        return rows

    def decode_(
        self, rows: Tensor, total: Tensor, state: dict[str, Tensor], sync: partavg.Sync
    ) -> None:
        """Go part of the way to the mean."""
        rows.lerp_(total.expand_as(rows), self.pull)


def main() -> None:
    """Train with it."""
    torch.manual_seed(0)
    x = torch.randn(2000, 10)
    y = (x.square().sum(1) > 9.3).long()
    simulation = partavg.Simulation(
        nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)),
        F.cross_entropy,
        (x, y),
        partavg.iid(y, workers=16, seed=0),
        schedule=partavg.Schedule.partial(4),
        solver=SignDescent(),
        lr=0.002,
    )
    for _ in simulation.train(until=300):
        pass
    print(f"accuracy {simulation.evaluate((x, y)).accuracy:.1%}")


if __name__ == "__main__":
    main()
