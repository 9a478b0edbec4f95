"""Train your own model on your own tensors with partial averaging."""

import torch
from torch import nn
from torch.nn import functional as F

import partavg


def main() -> nn.Module:
    """Train, and look at it on the way."""
    torch.manual_seed(0)
    x = torch.randn(4000, 20)
    y = (x[:, :10].sum(1) * x[:, 10:].sum(1) > 0).long()  # two classes that no line separates
    model = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )

    simulation = partavg.Simulation(
        model,
        F.cross_entropy,
        (x[:3000], y[:3000]),
        partavg.iid(y[:3000], workers=32, seed=0),
        schedule=partavg.Schedule.partial(8),  # average another eighth after every step
        solver=partavg.SGD(momentum=0.9),
        lr=0.05,
        batch=16,
    )
    for record in simulation.train(until=200):
        if record.step % 50 == 0:
            found = simulation.evaluate((x[3000:], y[3000:]))
            apart = simulation.discrepancy().total
            print(f"step {record.step}: accuracy {found.accuracy:.1%}, discrepancy {apart:.2f}")

    return simulation.consensus()  # the average of all workers


if __name__ == "__main__":
    main()
