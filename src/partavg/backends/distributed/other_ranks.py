"""Going on from what another number of ranks had saved."""

from itertools import chain

from torch import Tensor

from partavg.backends.distributed.collectives import Collective
from partavg.backends.distributed.evaluating import average_views_
from partavg.backends.distributed.module_row import ModuleRow
from partavg.core.abilities import abilities
from partavg.core.arrival import arrive_
from partavg.core.mean import Mean
from partavg.core.plan import Plan
from partavg.core.settle import settle_
from partavg.core.solver import Solver


def go_on_with_others_(row: ModuleRow, plan: Plan, solver: Solver, collective: Collective) -> None:
    """Make one model of those that ranks loaded, and solvers' memory fit together again.

    Averages on their way arrive at once, then all is averaged, without an outer step. What a
    solver's workers have in common stays; what each has for itself is moved to its center.
    """
    arrive_(row, plan, solver, at_once=True)
    said = abilities(solver)
    alone = said.outer_step or said.keeps_apart
    settle_(row, plan, Mean() if alone else solver, collective, plainly=True, alike=())
    for own, center in said.centers:
        spans = list(chain(*plan.partition.parts))
        means: list[Tensor] = [row.memory[own][:, start:stop].clone() for start, stop in spans]
        average_views_(means, row, plan, collective)
        for (start, stop), mean in zip(spans, means, strict=True):
            rows = row.memory[own][:, start:stop].sub_(mean)
            if center is not None:
                rows.add_(row.memory[center][:, start:stop])
