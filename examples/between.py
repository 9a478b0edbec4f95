"""The ground between periodic and partial averaging: the same traffic in 1, 2, 4, … parts."""

import torch
from torch.nn import functional as F

import partavg
from partavg.models import mlp

INTERVAL, STEPS, WORKERS = 8, 80, 32


def main() -> None:
    """Print a line for each number of parts."""
    data = partavg.load_dataset("fashion_subset")
    images = partavg.Images.fit(data.train.inputs)
    split = partavg.dirichlet(data.train.targets, WORKERS, seed=0, alpha=0.1)
    print("parts  accuracy  peak discrepancy  MB sent  messages")
    for parts in (1, 2, 4, 8):
        torch.manual_seed(0)
        simulation = partavg.Simulation(
            mlp(data.shape, data.classes, hidden=(32, 32)),
            F.cross_entropy,
            data.train,
            split,
            schedule=partavg.Schedule(INTERVAL, parts),
            solver=partavg.SGD(momentum=0.9),
            lr=0.02,
            batch=16,
            transform=images,
        )
        peak = max(simulation.discrepancy().total for _ in simulation.train(until=STEPS))
        accuracy = simulation.evaluate(data.test).accuracy
        megabytes, messages = simulation.workers.bytes / 1e6, simulation.workers.messages
        print(f"{parts:5}  {accuracy:8.1%}  {peak:16.2f}  {megabytes:7.2f}  {messages:8}")


if __name__ == "__main__":
    main()
