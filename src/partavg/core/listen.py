"""A hand-over that costs nothing: who comes next takes each average in place of who leaves."""

from jaxtyping import Float
from torch import Tensor, cat

from partavg.core.abilities import abilities
from partavg.core.average import deliver_
from partavg.core.plan import Plan
from partavg.core.solver import Solver, Sync
from partavg.core.views import Slices, spread_
from partavg.core.workers import Workers


def hear_(
    workers: Workers,
    part: int,
    plan: Plan,
    total: Float[Tensor, "_"],
    lengths: list[int],
    *,
    solver: Solver,
    sync: Sync,
) -> None:
    """Keep an average for those who come next; those who leave do not get it, and drift on.

    What a worker remembers for itself it knows without the average. What all remember together
    changes for those who come only.
    """
    spans = plan.partition.parts[part]
    width = sum(stop - start for start, stop in spans)
    statistics = sum(stop - start for start, stop in plan.buffer_parts[part])
    middle = len(total) - statistics
    heard = {"params": total[:width], "buffers": total[middle:]}
    if not abilities(solver).plain:
        params = [rows.clone() for rows in Slices(workers.params, spans)]
        memory = {k: v.clone() if k in plan.shared else v for k, v in workers.memory.items()}
        own = lengths[: len(lengths) - len(plan.buffer_parts[part])]
        deliver_(params, [], total[:middle], own, memory, spans, solver=solver, sync=sync)
        heard["params"] = cat([rows[0] for rows in params])
        for name in plan.shared:
            heard[f"memory.{name}"] = cat([memory[name][0, a:b] for a, b in spans])
    workers.heard.pop(part, None)  # the last that is heard comes last
    workers.heard[part] = heard


def hand_over_(workers: Workers, plan: Plan) -> None:
    """Let those who come begin with what they heard: each part as it was last averaged."""
    for part, heard in workers.heard.items():
        spans = plan.partition.parts[part]
        spread_(Slices(workers.params, spans), heard["params"])
        spread_(Slices(workers.buffers, plan.buffer_parts[part]), heard["buffers"])
        for name in plan.shared & workers.memory.keys():
            if f"memory.{name}" in heard:
                spread_(Slices(workers.memory[name], spans), heard[f"memory.{name}"])
    workers.heard = {}
    workers.steps.zero_()
    workers.lr_sum.zero_()
