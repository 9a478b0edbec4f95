"""A hand-over that costs nothing: who comes next takes each average in place of who leaves."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from torch import cat

from partavg.core.plan import Plan
from partavg.core.views import Slices, spread_
from partavg.core.workers import Workers


@contextmanager
def not_leaving(workers: Workers, part: int, plan: Plan) -> Iterator[None]:
    """Inside, an average is given to all workers; who leaves has nothing of it after that.

    It is kept for those who come next. Who leaves drifts on: what a worker remembers for itself it
    knows without the average, but what all remember together is for it as it was.
    """
    leaving = plan.leaving(workers.step)
    if leaving is None:
        yield
        return
    params, buffers = workers.columns(plan.partition.parts[part], plan.buffer_parts[part])
    own = [view[leaving].clone() for view in chain(params, buffers)]
    if not workers.behind:
        workers.behind = {name: workers.memory[name].clone() for name in plan.shared}
    yield
    workers.heard.pop(part, None)  # the last that is heard comes last
    workers.heard[part] = {
        name: cat([workers.params.new_empty(0), *(view[0] for view in views)])
        for name, views in (("params", params), ("buffers", buffers))
    }
    for view, before in zip(chain(params, buffers), own, strict=True):
        view[leaving] = before


def hand_over_(workers: Workers, plan: Plan, rows: slice) -> None:
    """Let those who come into some rows begin with what they heard: each part as last averaged."""
    params, buffers = workers.params[rows], workers.buffers[rows]
    for part, heard in workers.heard.items():
        spread_(Slices(params, plan.partition.parts[part]), heard["params"])
        spread_(Slices(buffers, plan.buffer_parts[part]), heard["buffers"])
    workers.heard, workers.behind = {}, {}
    workers.steps[rows] = 0
    workers.lr_sum[rows] = 0
