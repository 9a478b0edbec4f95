"""A cycle of a private run begins with what was last released, and with nothing else."""

from torch import cat

from partavg.core.plan import Plan
from partavg.core.solver import Solver
from partavg.core.views import Slices, spread_
from partavg.core.workers import Workers


def begin_anew_(workers: Workers, plan: Plan, solver: Solver) -> None:
    """Let those who come take each part as it was last released, and remember nothing.

    What the slot's last client did to the model, or its momentum remembers, must not reach another
    client. What is a client's own is in its local columns, which are left alone.
    """
    common, shared = workers.common, [span for part in plan.partition.parts for span in part]
    assert common is not None
    assert workers.layout is not None
    spread_(Slices(workers.params, shared), cat([common[start:stop] for start, stop in shared]))
    for name, fresh in solver.init(workers.params, workers.layout).items():
        if name not in plan.shared:
            for start, stop in shared:
                workers.memory[name][:, start:stop] = fresh[:, start:stop]
    workers.steps.zero_()
    workers.lr_sum.zero_()
    workers.taken.zero_()
