"""Exchange between workers: averaging parts, now or on their way, and handing models over."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor, tensor

from partavg.core.abilities import abilities
from partavg.core.aggregate import About, one_message, weighted_sum
from partavg.core.arrival import arrive_, count_on_, counters_of
from partavg.core.average import (
    Arriving,
    LeftOut,
    Reduce,
    accumulating,
    alone,
    collect,
    consensus,
    deliver_,
    discrepancy,
    reduced,
)
from partavg.core.mean import Mean, only_averaging
from partavg.core.participation import Participation
from partavg.core.partition import Span
from partavg.core.plan import Plan
from partavg.core.seeds import fold
from partavg.core.share import Share, memory_to_send, recalled, share_of
from partavg.core.solver import Solver, Sync
from partavg.core.trial import message_length, sends_parameters
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
    buffer_spans = plan.buffer_parts[part] if buffers is None else buffers
    sync = workers.sync(part, plan.active_fraction)
    arriving, lengths, share = _send(
        workers, part, plan, solver, reduce, sync=sync, buffers=buffer_spans, exact=exact
    )
    workers.bytes += sum(lengths) * workers.params.element_size()
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
    with recalled(workers, share, solver) as (memory, places):
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
    combine = None
    if plan.aggregate is not weighted_sum:
        if share.common is None:
            raise ValueError("an aggregate must know the start: call workers.remember_start_()")
        told = about(share.common, part, workers.step, plan, solver, share.spans)
        combine = partial(one_message, plan.aggregate, about=told)
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
    return About(part, step, seed, last, _places(spans, solver))


def _places(spans: Sequence[Span], solver: Solver) -> tuple[slice, ...]:
    """Where the parameters of some spans lie in a message; nowhere if they are not sent."""
    if not sends_parameters(solver):
        return ()
    length, widths = message_length(solver), [stop - start for start, stop in spans]
    each = (length.per_column * width + length.per_span for width in widths)
    starts = accumulate(each, initial=0)
    return tuple(slice(at, at + width) for at, width in zip(starts, widths, strict=False))


def settle_(
    workers: Workers,
    plan: Plan,
    solver: Solver,
    reduce: Reduce = alone,
    *,
    plainly: bool = False,
    alike: Collection[int] | None = None,
) -> None:
    """Average all that was not averaged after the last step: then all workers are the same.

    If `plainly` without the solver's outer step, and without what keeps workers apart: then the
    parts averaged after the last step must be again. Where others than the solver may have changed
    workers, only the parts that are `alike` need not be.
    """
    apart = plainly and keeps_apart(plan, solver)
    due = alike if alike is not None else _just_averaged(workers, reduce)
    due = [] if apart else due
    rest = [part for part in range(len(plan.partition.parts)) if part not in due]
    arrive_(workers, plan, solver, at_once=True, averaged_again=rest)
    if plainly:
        solver = only_averaging(solver)
    plan = replace(plan, mix=None, fresh=None)
    known = {span for part in due for span in plan.buffer_parts[part]}
    before = workers.bytes
    for part in rest:
        fresh = tuple(span for span in plan.buffer_parts[part] if span not in known)
        known.update(fresh)
        average_(workers, part, plan, solver, reduce, buffers=fresh, exact=True)
    workers.messages += workers.bytes > before


def keeps_apart(plan: Plan, solver: Solver) -> bool:
    """Whether workers differ in a part that was just averaged."""
    return bool(plan.mix) or abilities(solver).keeps_apart


def common_model(
    workers: Workers, plan: Plan, reduce: Reduce = alone
) -> tuple[Float[Tensor, "d"], Float[Tensor, "b"]]:
    """Parameters and buffers that all workers would have in common, were all parts averaged now.

    It is u = Σ p_i x_i, unless the plan has an Aggregate of its own. Local columns, which workers
    never have in common, are their mean.
    """
    weights = plan.weights_at(max(1, workers.step))
    buffers = consensus(workers.buffers, weights, reduce)
    if plan.aggregate is weighted_sum:
        return consensus(workers.params, weights, reduce), buffers
    local = [consensus(workers.params[:, a:b], weights, reduce) for a, b in plan.partition.local]
    copy = Workers(
        workers.params.clone(),
        workers.buffers.clone(),
        {},
        workers.steps.clone(),
        workers.lr_sum.clone(),
        workers.taken.clone(),
        max(1, workers.step),
        common=None if workers.common is None else workers.common.clone(),
    )
    copy.steps[:, list(workers.pending)] += 1  # their averages are on the way: workers differ
    settle_(copy, plan, Mean(), reduce, plainly=True)
    for start, stop in {span for part in plan.buffer_parts for span in part}:
        buffers[start:stop] = copy.buffers[0, start:stop]
    for (start, stop), mean in zip(plan.partition.local, local, strict=True):
        copy.params[0, start:stop] = mean
    return copy.params[0], buffers


def redistribute_(
    workers: Workers, plan: Plan, solver: Solver, reduce: Reduce, who: Participation
) -> None:
    """Give models to the clients that are active from the next step on.

    What was averaged after the last step is known to all already and costs nothing again.
    """
    if who.redistribution == "average":
        settle_(workers, plan, solver, reduce, plainly=keeps_apart(plan, solver))
    arrive_(workers, plan, solver, at_once=True)
    if who.redistribution == "permute":
        # The models stay in their rows: it is the data that each row reads that changes.
        due = _just_averaged(workers, reduce)
        known = {span for part in due for span in plan.buffer_parts[part]}
        columns = sum(n for part, n in enumerate(plan.partition.sizes) if part not in due)
        known.update(plan.local_buffers)  # they stay with their client
        columns += workers.buffers.shape[1] - sum(stop - start for start, stop in known)
        workers.bytes += columns * workers.params.element_size()
        workers.messages += columns > 0
    if workers.bank:
        leaving, coming = tensor(who(workers.step)), tensor(who(workers.step + 1))
        workers.swap_(plan.swap, leaving, coming, plan.local)


def _just_averaged(workers: Workers, reduce: Reduce) -> list[int]:
    """The parts that no worker, here or elsewhere, has changed since their last averaging."""
    try:
        steps = reduced(reduce, workers.steps.sum(0))
    except LeftOut:
        return []  # nobody knows
    return [part for part, sum_ in enumerate(steps.tolist()) if not sum_]


def _discrepancy(workers: Workers, part: int, plan: Plan, reduce: Reduce) -> Tensor:
    """How far the workers are apart in a part, per step since its last averaging."""
    weights = plan.weights_at(workers.step)
    columns, _ = workers.columns(plan.partition.parts[part], ())
    total = torch.stack([discrepancy(rows, weights, reduce).sum() for rows in columns]).sum()
    taken = workers.steps[:, part]
    steps, rows = reduced(reduce, torch.stack([taken.sum(), taken.new_tensor(len(taken))]))
    mean: Tensor = total / (steps / rows).clamp(min=1)
    return mean
