"""Averages that arrive after they were sent, while training went on."""

from collections.abc import Collection
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.abilities import abilities
from partavg.core.average import deliver_
from partavg.core.partition import Span
from partavg.core.plan import Plan
from partavg.core.reduce import LeftOut
from partavg.core.share import recalled, share_of
from partavg.core.solver import Solver, Sync
from partavg.core.workers import Workers, arrived


def arrive_(
    workers: Workers,
    plan: Plan,
    solver: Solver,
    *,
    at_once: bool = False,
    averaged_again: Collection[int] = (),
) -> None:
    """Apply the averages that arrive with this step: x ← u + (x now − x when it was sent).

    With a `mix` α it is x ← (1 − α) u + α (x now), u being what the solver makes of the average.

    Buffers are what was averaged, without what happened since: the difference of two variances is
    none, and with it one could turn negative. Only whole numbers count on. The buffers of
    parts that are `averaged_again` at once do not become what is older.
    """
    for part, message in list(workers.pending.items()):
        if at_once or message["arrives"] <= workers.step:
            _arrive_(workers, plan, solver, part, message, again=part in averaged_again)
            del workers.pending[part]


def _arrive_(
    workers: Workers,
    plan: Plan,
    solver: Solver,
    part: int,
    message: dict[str, Any],
    *,
    again: bool,
) -> None:
    """Apply an average that arrives."""
    sync = Sync(*message["sync"])
    try:
        total = arrived(message)
    except LeftOut:
        count_on_(workers, part, plan, solver, sync)
        return
    counters = counters_of(workers, plan, part)
    share = share_of(workers, plan, part, message.get("sent_at", 0))
    _, buffers = workers.columns((), plan.buffer_parts[part])
    if again:
        counters, buffers = counters[:0], [rows.clone() for rows in buffers]
    sent = message["sent"][: len(share.spans)]
    since = workers.buffers[:, counters]
    if len(counters):
        since = since - message.get("counted", since)  # 0.1 did not know of it
    if plan.mix is None:
        for rows, before in zip(share.params, sent, strict=True):
            rows.sub_(before)
    lengths = message["lengths"]
    with recalled(workers, share, solver) as (memory, places):
        deliver_(sent, buffers, total, lengths, memory, places, solver=solver, sync=sync)
    share._replace(params=sent).note_common_()
    for rows, after in zip(share.params, sent, strict=True):
        if plan.mix is None:
            rows.add_(after)
        else:
            rows.copy_(after.lerp_(rows, plan.mix))
    share.put_back_(workers)
    workers.buffers[:, counters] += since


def counters_of(workers: Workers, plan: Plan, part: int) -> Int[Tensor, "c"]:
    """The columns of a part's buffers that hold whole numbers."""
    return _within(plan.counters, plan.buffer_parts[part], workers.buffers.device)


@lru_cache(maxsize=1024)
def _within(
    columns: tuple[int, ...], spans: tuple[Span, ...], device: torch.device
) -> Int[Tensor, "c"]:
    """Those columns that lie in spans; to send them to a GPU at every averaging would stop it."""
    some = [at for at in columns if any(start <= at < stop for start, stop in spans)]
    return torch.tensor(some, dtype=torch.int64, device=device)


def count_on_(workers: Workers, part: int, plan: Plan, solver: Solver, sync: Sync) -> None:
    """Nothing arrived: the steps of a part are still those since its last averaging."""
    if plan.fresh is None:
        workers.steps[:, part : part + 1] += sync.steps
        workers.lr_sum[:, part : part + 1] += sync.lr_sum
    if abilities(solver).outer_step:
        workers.set_outer_steps_(part, sync.outer_steps - 1)
