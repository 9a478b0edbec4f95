"""Exchange between workers: averaging parts, now or on their way, and handing models over."""

from torch import Tensor, tensor

from partavg.core.average import (
    Reduce,
    alone,
    at_once,
    collect,
    deliver_,
    deliver_at_once_,
    discrepancy,
)
from partavg.core.participation import Participation
from partavg.core.partition import Span
from partavg.core.plan import Plan
from partavg.core.solver import Solver, Sync
from partavg.core.workers import Workers


def average_(
    workers: Workers,
    part: int,
    plan: Plan,
    solver: Solver,
    reduce: Reduce,
    *,
    buffers: tuple[Span, ...] | None = None,
    delay: int = 0,
) -> None:
    """Average a part and the buffers that go with it now, or send it: the average arrives later."""
    spans = plan.partition.parts[part]
    buffer_spans = plan.buffer_parts[part] if buffers is None else buffers
    sync = workers.sync(part, plan.share)
    totals = collect(
        workers.params,
        workers.memory,
        workers.buffers,
        spans,
        buffer_spans,
        solver=solver,
        sync=sync,
        weights=plan.weights_at(workers.step),
        reduce=reduce,
    )
    workers.bytes += sum(map(len, totals)) * workers.params.element_size()
    if "apart" in workers.notes:
        workers.notes["apart"][part] = _discrepancy(workers, part, plan)
    workers.steps[:, part] = 0
    workers.lr_sum[:, part] = 0
    if not delay and at_once(workers.params, solver):
        deliver_at_once_(workers.params, workers.buffers, totals, spans, buffer_spans)
        return
    columns = _columns(workers, spans, buffer_spans)
    if delay:
        workers.pending[part] = {
            "arrives": workers.step + delay,
            "sync": tuple(sync),
            "totals": totals,
            "sent": [rows.clone() for rows in columns],
        }
    else:
        deliver_(columns, totals, workers.memory, spans, solver=solver, sync=sync)


def arrive_(workers: Workers, plan: Plan, solver: Solver, *, at_once: bool = False) -> None:
    """Apply the averages that arrive with this step: x ← u + (x now − x when it was sent)."""
    for part, message in list(workers.pending.items()):
        if at_once or message["arrives"] <= workers.step:
            spans = plan.partition.parts[part]
            columns, sent = _columns(workers, spans, plan.buffer_parts[part]), message["sent"]
            for rows, before in zip(columns, sent, strict=True):
                rows.sub_(before)
            sync = Sync(*message["sync"])
            deliver_(sent, message["totals"], workers.memory, spans, solver=solver, sync=sync)
            for rows, after in zip(columns, sent, strict=True):
                rows.add_(after)
            del workers.pending[part]


def settle_(workers: Workers, plan: Plan, solver: Solver, reduce: Reduce = alone) -> None:
    """Average all that was not averaged after the last step: then all workers are the same."""
    arrive_(workers, plan, solver, at_once=True)
    due = _just_averaged(workers)
    known = {span for part in due for span in plan.buffer_parts[part]}
    before = workers.bytes
    for part in range(len(plan.partition.parts)):
        if part not in due:
            fresh = tuple(span for span in plan.buffer_parts[part] if span not in known)
            known.update(fresh)
            average_(workers, part, plan, solver, reduce, buffers=fresh)
    workers.messages += workers.bytes > before


def redistribute_(
    workers: Workers, plan: Plan, solver: Solver, reduce: Reduce, who: Participation
) -> None:
    """Give models to the clients that are active from the next step on.

    What was averaged after the last step is known to all already and costs nothing again.
    """
    arrive_(workers, plan, solver, at_once=True)
    if who.redistribution == "average":
        settle_(workers, plan, solver, reduce)
    elif who.redistribution == "permute":
        # The models stay in their rows: it is the data that each row reads that changes.
        due = _just_averaged(workers)
        known = {span for part in due for span in plan.buffer_parts[part]}
        columns = sum(n for part, n in enumerate(plan.partition.sizes) if part not in due)
        columns += workers.buffers.shape[1] - sum(stop - start for start, stop in known)
        workers.bytes += columns * workers.params.element_size()
        workers.messages += columns > 0
    if workers.bank:
        workers.swap_(tensor(who(workers.step)), tensor(who(workers.step + 1)))


def _just_averaged(workers: Workers) -> list[int]:
    """The parts that no worker has changed since their last averaging."""
    return [part for part, steps in enumerate(workers.steps.amax(0).tolist()) if not steps]


def _discrepancy(workers: Workers, part: int, plan: Plan) -> Tensor:
    """How far the workers are apart in a part, per step since its last averaging."""
    weights = plan.weights_at(workers.step)
    spans = plan.partition.parts[part]
    total = sum((discrepancy(workers.params[:, a:b], weights).sum() for a, b in spans), tensor(0.0))
    return total / workers.steps[:, part].mean().clamp(min=1)


def _columns(
    workers: Workers, spans: tuple[Span, ...], buffer_spans: tuple[Span, ...]
) -> list[Tensor]:
    """Views of a part's columns, and of the buffers' that go with it."""
    params = [workers.params[:, a:b] for a, b in spans]
    return params + [workers.buffers[:, a:b] for a, b in buffer_spans]
