"""Workers with quadratic losses, trained by the loop and as textbooks have it, in float64."""

from collections.abc import Callable

import torch
from tests.problems import LAYOUT, Quadratic, plan, quadratic_batches, start
from tests.strategies import rows
from torch import Tensor

from partavg.core.abilities import abilities
from partavg.core.aggregate import weighted_sum
from partavg.core.loop import Batch, train
from partavg.core.plan import Plan
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.workers import Workers

D, M, STEPS = LAYOUT.size, 4, 14
BOTH = [Schedule.periodic(4), Schedule.partial(4), Schedule(6, 2)]
WEIGHTS = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def lr(step: int) -> float:
    return 0.1 / step**0.5


def made(schedule: Schedule, weights: Tensor = WEIGHTS, **more) -> Plan:
    base = plan(schedule, len(weights), "contiguous", weights)
    return Plan(schedule, base.partition, base.buffer_parts, base.weights, **more)


def run(
    solver: Solver,
    schedule: Schedule,
    seen: Callable[[Workers], None] | None = None,
    lr: Callable[[int], float] = lr,
    **more,
) -> Workers:
    the_plan = made(schedule, **more)
    who = the_plan.participation
    workers = start(solver, schedule.parts, rows(1, D, 0).repeat(who.active if who else M, 1))
    every = quadratic_batches(len(the_plan.weights), D)

    def batches(step: int) -> Batch:
        active = torch.tensor(who(step)) if who else slice(None)
        return Batch(*(tensor[active] for tensor in every(step)))

    if who and who.moves:
        names = [f"memory.{name}" for name in abilities(solver).per_client]
        workers.keep(who.clients, names, torch.device("cpu"))
    if the_plan.aggregate is not weighted_sum:
        workers.remember_start_()
    for _ in train(workers, Quadratic(), batches, plan=the_plan, solver=solver, lr=lr, until=STEPS):
        if seen:
            seen(workers)
    return workers


def same(one: Workers | Tensor, other: Workers | Tensor, tolerance: float = 1e-11) -> None:
    one, other = (x.params if isinstance(x, Workers) else x for x in (one, other))
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


class Textbook:
    """Workers as a list of vectors; rules as they stand in the papers, part by part."""

    def __init__(self, schedule: Schedule, clients: int = M, weights: Tensor = WEIGHTS) -> None:
        the_plan = made(schedule, weights)
        self.schedule, self.p = schedule, weights
        self.parts = [
            torch.cat([torch.arange(a, b) for a, b in spans]) for spans in the_plan.partition.parts
        ]
        self.x = [rows(1, D, 0)[0].clone() for _ in range(clients)]
        self.r = self.x[0].clone()
        self.batches = quadratic_batches(clients, D)
        self.h = [torch.zeros(schedule.parts, dtype=torch.float64) for _ in range(clients)]

    def gradient(self, i: int, k: int) -> Tensor:
        inputs, targets, _ = self.batches(k)
        return inputs[i, 0] * (self.x[i] - targets[i, 0])

    def mean(self, j: Tensor) -> Tensor:
        return sum(p * x[j] for p, x in zip(self.p, self.x, strict=True))
