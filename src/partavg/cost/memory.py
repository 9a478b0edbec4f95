"""What averaging keeps beside the model."""

from math import ceil

import torch

from partavg.core.abilities import lowest
from partavg.core.layout import Layout
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.wire_formats import WIRE_FORMATS


def memory_beside(
    parameters: int,
    schedule: Schedule,
    *,
    workers: int,
    solver: Solver | None = None,
    delay: int = 0,
    wire: str = "full",
    memory: str = "full",
    width: int = 4,
) -> float:
    """Bytes that an attached rank keeps between steps, beside model, gradients and optimizer.

    A parameter has `width` bytes; sums and what solvers remember have 4 at least, but for `memory`
    "params". Of what is on the host, the part that is due next counts. Rounded messages need the
    last average, what rounding lost, and each rank its share of that of the sums. Of parts on their
    way there is what was sent, and the message.

    >>> from partavg.solvers.outer import diloco
    >>> memory_beside(1000, Schedule(8, 8), workers=4, solver=diloco())
    8000.0
    """
    wide = max(4, width)
    each = 0.0
    if solver is not None:
        kept = remembered(solver) * (width if "params" in memory else wide)
        each += kept / schedule.parts if "host" in memory else kept
    if WIRE_FORMATS[wire].codec is not None:
        each += wide * (2 + 1 / workers)
    return parameters * (each + (width + wide) * flying(schedule, delay))


def flying(schedule: Schedule, delay: int) -> float:
    """The share of all parts that is on its way at a time.

    >>> flying(Schedule(8, 4), delay=3)
    0.5
    """
    return min(schedule.parts, ceil(delay * schedule.parts / schedule.interval)) / schedule.parts


def remembered(solver: Solver) -> int:
    """Numbers per parameter that a solver remembers on top of the user's optimizer."""

    def names(some: Solver) -> set[str]:
        return set(some.init(torch.empty(1, 0), Layout((), ())))

    base = lowest(solver)
    return 0 if base is solver else len(names(solver) - names(base))
