"""Exchange between workers: what they send of a part, averaged now or on its way."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import abilities
from partavg.core.aggregate import About, one_message, weighted_sum
from partavg.core.arrival import count_on_, counters_of
from partavg.core.average import collect, deliver_, discrepancy
from partavg.core.listen import not_leaving
from partavg.core.mean import at_rest
from partavg.core.partition import Span
from partavg.core.plan import Plan
from partavg.core.reduce import Arriving, LeftOut, Reduce, accumulating, reduced
from partavg.core.rounded import rounded_bytes, rounded_sum
from partavg.core.seeds import fold
from partavg.core.share import Share, memory_to_send, recalled, share_of
from partavg.core.solver import Solver, Sync
from partavg.core.trial import message_length, sends_parameters
from partavg.core.wire_formats import WIRE_FORMATS
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
    exact: bool = False,
) -> None:
    """Average a part and the buffers that go with it now, or send it: the average arrives later.

    Where the average is to be `exact`, messages are not rounded.
    """
    solver = at_rest(solver) if plan.resting else solver
    buffer_spans = plan.buffer_parts[part] if buffers is None else buffers
    sync = workers.sync(part, plan.active_fraction)
    in_full = exact or part not in workers.owed
    arriving, lengths, share = _send(
        workers, part, plan, solver, reduce, sync=sync, buffers=buffer_spans, exact=exact
    )
    workers.bytes += _bytes(workers, plan, lengths, len(share.spans), in_full=in_full)
    if "apart" in workers.notes:
        workers.notes["apart"][part] = _discrepancy(workers, part, plan, reduce)
    if plan.fresh is None:
        workers.steps[:, part] = 0
        workers.lr_sum[:, part] = 0
    if abilities(solver).outer_step:
        workers.count_outer_step_(part)
    if delay:
        workers.pending[part] = {
            "arrives": workers.step + delay,
            "sent_at": workers.step,
            "sync": tuple(sync),
            "total": arriving,
            "lengths": lengths,
            "sent": [rows.clone() for rows in share.params],
            "counted": workers.buffers[:, counters_of(workers, plan, part)],
        }
        return
    mix = plan.mix or 0.0
    own = [rows.clone() for rows in share.params] if mix else []
    try:
        total = arriving()
    except LeftOut:
        count_on_(workers, part, plan, solver, sync)
        return
    _, statistics = workers.columns((), buffer_spans)
    with not_leaving(workers, part, plan), recalled(workers, share, solver) as (memory, places):
        deliver_(share.params, statistics, total, lengths, memory, places, solver=solver, sync=sync)
    share.note_common_()
    for rows, before in zip(share.params, own, strict=bool(own)):
        rows.lerp_(before, mix)
    share.put_back_(workers)


def send(
    workers: Workers,
    part: int,
    plan: Plan,
    solver: Solver,
    reduce: Reduce,
    *,
    sync: Sync,
    buffers: Sequence[Span],
    exact: bool = False,
) -> tuple[Arriving, list[int]]:
    """Send what workers have to say of a part; what comes back, and the lengths of its pieces."""
    arriving, lengths, _ = _send(
        workers, part, plan, solver, reduce, sync=sync, buffers=buffers, exact=exact
    )
    return arriving, lengths


def _send(
    workers: Workers,
    part: int,
    plan: Plan,
    solver: Solver,
    reduce: Reduce,
    *,
    sync: Sync,
    buffers: Sequence[Span],
    exact: bool,
) -> tuple[Arriving, list[int], Share]:
    """The same, and the columns that it is about."""
    share = share_of(workers, plan, part, workers.step)
    combine, aggregate = None, plan.aggregate
    if plan.private:
        aggregate = plan.private.remembering(workers.notes)
    if aggregate is not weighted_sum:
        if share.common is None:
            raise ValueError("an aggregate must know the start: call workers.remember_start_()")
        told = about(share.common, part, workers.step, plan, solver, share.spans)
        combine = partial(one_message, aggregate, about=told)
    rounding = None
    if WIRE_FORMATS[plan.wire].codec and not exact:
        owed = workers.owed.setdefault(part, {})
        rounding = partial(rounded_sum, owed=owed, wire=plan.wire)
    memory, places = memory_to_send(workers, share, solver)
    arriving, lengths = collect(
        share.params,
        workers.columns((), buffers)[1],
        memory,
        places,
        solver=solver,
        sync=sync,
        weights=plan.weights_at(workers.step),
        reduce=reduce,
        key=part,
        exact=exact,
        combine=combine,
        rounding=rounding,
    )
    return arriving, lengths, share


def about(
    common: Float[Tensor, "_"],
    part: int,
    step: int,
    plan: Plan,
    solver: Solver,
    spans: Sequence[Span] | None = None,
) -> About:
    """What an Aggregate is told beside the messages about a part, or some spans in its place."""
    spans = plan.partition.parts[part] if spans is None else spans
    last = torch.cat([common[start:stop] for start, stop in spans]).to(accumulating(common.dtype))
    seed = fold(plan.seed, "aggregate", step, part)
    share = len(last) / max(1, sum(plan.partition.sizes))
    return About(part, step, seed, last, _places(spans, solver), share)


def _places(spans: Sequence[Span], solver: Solver) -> tuple[slice, ...]:
    """Where the parameters of some spans lie in a message; nowhere if they are not sent."""
    if not sends_parameters(solver):
        return ()
    length, widths = message_length(solver), [stop - start for start, stop in spans]
    if length == (1, 0, 0):  # they lie one after another
        return (slice(0, sum(widths)),)
    each = (length.per_column * width + length.per_span for width in widths)
    starts = accumulate(each, initial=0)
    return tuple(slice(at, at + width) for at, width in zip(starts, widths, strict=False))


def _bytes(workers: Workers, plan: Plan, lengths: list[int], spans: int, *, in_full: bool) -> int:
    """What each worker sends of a message, of which the pieces of spans may be rounded."""
    number = workers.params.element_size()
    if in_full:
        return sum(lengths) * number
    count, rounded = len(plan.all_weights_at(workers.step)), sum(lengths[:spans])
    return rounded_bytes(count, rounded, sum(lengths[spans:]), number, plan.wire)


def _discrepancy(workers: Workers, part: int, plan: Plan, reduce: Reduce) -> Tensor:
    """How far the workers are apart in a part, per step since its last averaging."""
    weights = plan.weights_at(workers.step)
    columns, _ = workers.columns(plan.partition.parts[part], ())
    total = torch.stack([discrepancy(rows, weights, reduce).sum() for rows in columns]).sum()
    taken = workers.steps[:, part]
    steps, rows = reduced(reduce, torch.stack([taken.sum(), taken.new_tensor(len(taken))]))
    mean: Tensor = total / (steps / rows).clamp(min=1)
    return mean
