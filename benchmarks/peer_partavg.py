"""A peer of benchmarks/peers.py: ours, averaging the whole model after each round as others do."""

from importlib.metadata import version

import torch
from peer_work import Clock, given, say
from torch.nn import functional as F

import partavg
from partavg.core.participation import Participation


def main() -> None:
    """Train, and say how long it took."""
    told = given()
    work = told.work
    some = Participation(work.users, work.cohort, work.steps, "average", told.seed)
    simulation = partavg.Simulation(
        told.model(),
        F.cross_entropy,
        told.samples,
        list(torch.arange(work.users * work.samples).view(work.users, -1)),
        schedule=partavg.Schedule.periodic(work.steps),
        solver=partavg.SGD(),
        lr=work.lr,
        batch=work.batch,
        participation=some if work.cohort < work.users else None,
        device=told.device,
        seed=told.seed,
    )
    test = tuple(t.to(told.device) for t in told.test)
    clock = Clock(told.device)  # the engine is chosen by now, as others have imported and built
    for record in simulation.train(told.rounds * work.steps):
        done, rest = divmod(record.step, work.steps)
        if rest:
            continue
        if told.due(done):
            simulation.evaluate(test)
        clock.end()
    say(simulation.consensus(), clock, told, f"partavg {version('partavg')}")


if __name__ == "__main__":
    main()
