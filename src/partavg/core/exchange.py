"""Exchange between workers: averaging parts, now or on their way, and handing models over."""

from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor, tensor

from partavg.core.abilities import abilities
from partavg.core.aggregate import About, one_message, weighted_sum
from partavg.core.average import (
    Arriving,
    Reduce,
    Views,
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
from partavg.core.solver import Solver, Sync
from partavg.core.trial import message_length, sends_parameters
from partavg.core.workers import Workers, arrived


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
    spans = plan.partition.parts[part]
    buffer_spans = plan.buffer_parts[part] if buffers is None else buffers
    sync = workers.sync(part, plan.active_fraction)
    arriving, lengths = send(
        workers, part, plan, solver, reduce, sync=sync, buffers=buffer_spans, exact=exact
    )
    columns = workers.columns(spans, buffer_spans)
    workers.bytes += sum(lengths) * workers.params.element_size()
    if "apart" in workers.notes:
        workers.notes["apart"][part] = _discrepancy(workers, part, plan, reduce)
    workers.steps[:, part] = 0
    workers.lr_sum[:, part] = 0
    if delay:
        workers.pending[part] = {
            "arrives": workers.step + delay,
            "sync": tuple(sync),
            "total": arriving,
            "lengths": lengths,
            "sent": [rows.clone() for rows in columns[0]],
            "counted": workers.buffers[:, _counters(workers, plan, part)],
        }
    else:
        deliver_(*columns, arriving(), lengths, workers.memory, spans, solver=solver, sync=sync)
        _note_common_(workers, spans, columns[0])


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
    spans = plan.partition.parts[part]
    combine = None
    if plan.aggregate is not weighted_sum:
        if workers.common is None:
            raise ValueError("an aggregate must know the start: call workers.remember_start_()")
        told = about(workers.common, part, workers.step, plan, solver)
        combine = partial(one_message, plan.aggregate, about=told)
    return collect(
        *workers.columns(spans, buffers),
        workers.memory,
        spans,
        solver=solver,
        sync=sync,
        weights=plan.weights_at(workers.step),
        reduce=reduce,
        key=part,
        exact=exact,
        combine=combine,
    )


def about(common: Float[Tensor, "d"], part: int, step: int, plan: Plan, solver: Solver) -> About:
    """What an Aggregate is told beside the messages about a part."""
    spans = plan.partition.parts[part]
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


def _note_common_(workers: Workers, spans: Sequence[Span], params: Views) -> None:
    """Keep what all workers have in common now, where somebody wants to know."""
    if workers.common is not None:
        for (start, stop), rows in zip(spans, params, strict=True):
            workers.common[start:stop] = rows[0]


def arrive_(
    workers: Workers,
    plan: Plan,
    solver: Solver,
    *,
    at_once: bool = False,
    averaged_again: Collection[int] = (),
) -> None:
    """Apply the averages that arrive with this step: x ← u + (x now − x when it was sent).

    Buffers are what was averaged, without what happened since: the difference of two variances is
    none, and with it one could turn negative. Only whole numbers count on. The buffers of
    parts that are `averaged_again` at once do not become what is older.
    """
    for part, message in list(workers.pending.items()):
        if at_once or message["arrives"] <= workers.step:
            spans, counters = plan.partition.parts[part], _counters(workers, plan, part)
            params, buffers = workers.columns(spans, plan.buffer_parts[part])
            if part in averaged_again:
                counters, buffers = counters[:0], [rows.clone() for rows in buffers]
            sent = message["sent"][: len(spans)]
            since = workers.buffers[:, counters]
            if len(counters):
                since = since - message.get("counted", since)  # 0.1 did not know of it
            for rows, before in zip(params, sent, strict=True):
                rows.sub_(before)
            deliver_(
                sent,
                buffers,
                arrived(message),
                message["lengths"],
                workers.memory,
                spans,
                solver=solver,
                sync=Sync(*message["sync"]),
            )
            _note_common_(workers, spans, sent)
            for rows, after in zip(params, sent, strict=True):
                rows.add_(after)
            workers.buffers[:, counters] += since
            del workers.pending[part]


def _counters(workers: Workers, plan: Plan, part: int) -> Int[Tensor, "c"]:
    """The columns of a part's buffers that hold whole numbers."""
    return _within(plan.counters, plan.buffer_parts[part], workers.buffers.device)


@lru_cache(maxsize=1024)
def _within(
    columns: tuple[int, ...], spans: tuple[Span, ...], device: torch.device
) -> Int[Tensor, "c"]:
    """Those columns that lie in spans; to send them to a GPU at every averaging would stop it."""
    some = [at for at in columns if any(start <= at < stop for start, stop in spans)]
    return torch.tensor(some, dtype=torch.int64, device=device)


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
    apart = plainly and abilities(solver).keeps_apart
    due = alike if alike is not None else _just_averaged(workers, reduce)
    due = [] if apart else due
    rest = [part for part in range(len(plan.partition.parts)) if part not in due]
    arrive_(workers, plan, solver, at_once=True, averaged_again=rest)
    if plainly:
        solver = only_averaging(solver)
    known = {span for part in due for span in plan.buffer_parts[part]}
    before = workers.bytes
    for part in rest:
        fresh = tuple(span for span in plan.buffer_parts[part] if span not in known)
        known.update(fresh)
        average_(workers, part, plan, solver, reduce, buffers=fresh, exact=True)
    workers.messages += workers.bytes > before


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
    settle_(copy, plan, Mean(), reduce)
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
        settle_(workers, plan, solver, reduce, plainly=abilities(solver).keeps_apart)
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
    steps = reduced(reduce, workers.steps.sum(0))
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
