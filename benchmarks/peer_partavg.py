"""A peer of benchmarks/peers.py: ours, averaging the whole model after each round as others do."""

from importlib.metadata import version

import torch
from peer_work import Clock, given, model, say
from torch.nn import functional as F

import partavg
from partavg.core.participation import Participation


def main() -> None:
    """Train, and say how long it took."""
    told = given()
    work = told.work
    some = Participation(work.users, work.cohort, every=work.steps, redistribution="average")
    simulation = partavg.Simulation(
        model(told.name),
        F.cross_entropy,
        told.samples,
        list(torch.arange(work.users * work.samples).view(work.users, -1)),
        schedule=partavg.Schedule.periodic(work.steps),
        solver=partavg.SGD(),
        lr=work.lr,
        batch=work.batch,
        participation=some if work.cohort < work.users else None,
        device=told.device,
    )
    clock = Clock(told.device)  # the engine is chosen by now, as others have imported and built
    for record in simulation.train(told.rounds * work.steps):
        if record.step % work.steps == 0:
            clock.end()
    say(simulation.consensus(), clock, told, f"partavg {version('partavg')}")


if __name__ == "__main__":
    main()
