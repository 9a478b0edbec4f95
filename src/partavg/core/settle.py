"""Ends and changes of hands: all workers made the same, and models given to other workers."""

from collections.abc import Collection
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, tensor

from partavg.core.abilities import abilities
from partavg.core.aggregate import weighted_sum
from partavg.core.arrival import arrive_
from partavg.core.average import consensus
from partavg.core.exchange import average_
from partavg.core.listen import hand_over_
from partavg.core.mean import Mean, only_averaging
from partavg.core.participation import Participation
from partavg.core.partition import without
from partavg.core.plan import Plan
from partavg.core.reduce import Alone, LeftOut, Reduce, alone, reduced
from partavg.core.released import begin_anew_
from partavg.core.solver import Solver
from partavg.core.workers import Workers


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
    for start, stop in plan.frozen:
        buffers[start:stop] = workers.buffers[0, start:stop]  # to the bit
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

    What was averaged after the last step is known to all already and costs nothing again. Where
    only some slots change hands, bytes are those of a worker on average, and a message is counted
    once all have changed.
    """
    slots = who.changing(workers.step + 1)
    if who.redistribution == "average":
        due = _averaged_after_step(workers, plan, reduce)
        settle_(workers, plan, solver, reduce, plainly=keeps_apart(plan, solver), alike=due)
    arrive_(workers, plan, solver, at_once=True)
    if who.redistribution == "permute":
        # The models stay in their rows: it is the data that each row reads that changes.
        due = _averaged_after_step(workers, plan, reduce)
        known = {span for part in due for span in plan.buffer_parts[part]}
        columns = sum(n for part, n in enumerate(plan.partition.sizes) if part not in due)
        known.update(plan.local_buffers)  # they stay with their client
        known.update(plan.frozen)
        columns += workers.buffers.shape[1] - sum(stop - start for start, stop in known)
        size = columns * workers.params.element_size()
        workers.bytes += round(size * (slots.stop - slots.start) / who.active)
        workers.messages += columns > 0 and slots.stop == who.active
    if who.redistribution == "listen":
        hand_over_(workers, plan, plan.held(slots))
    if workers.bank:
        leaving, coming = tensor(who(workers.step)), tensor(who(workers.step + 1))
        workers.swap_(plan.swap, leaving, coming, plan.local)
    if who.redistribution == "released":
        due = _averaged_after_step(workers, plan, reduce)
        _count_(workers, sum(n for part, n in enumerate(plan.partition.sizes) if part not in due))
        begin_anew_(workers, plan, solver)


def freeze_(workers: Workers, now: Plan, follows: Plan, reduce: Reduce = alone) -> None:
    """Give all workers the same statistics, those that stay as they are in the plan that follows.

    What was averaged after the last step is known to all already and costs nothing again. Clients
    that are put away have these statistics from now on, too.
    """
    _, row = common_model(workers, now, reduce)
    known = [span for part in _just_averaged(workers, reduce) for span in now.buffer_parts[part]]
    for start, stop in follows.frozen:
        workers.buffers[:, start:stop] = row[start:stop]
        if "buffers" in workers.bank:
            workers.bank["buffers"].fill_(slice(start, stop), row[start:stop])
    _count_(workers, sum(stop - start for start, stop in without(follows.frozen, known)))


def _count_(workers: Workers, columns: int) -> None:
    """Each worker was sent so many numbers."""
    workers.bytes += columns * workers.params.element_size()
    workers.messages += columns > 0


def _averaged_after_step(workers: Workers, plan: Plan, reduce: Reduce) -> Collection[int]:
    """The same, of workers that have just taken a step, without waiting for a GPU where one can.

    Where all take every step, and nobody is elsewhere, the schedule says it.
    """
    step, who = workers.step, plan.participation
    rests = plan.pace is not None or (who is not None and who.present(step) is not None)
    if (
        isinstance(reduce, Alone)
        and not rests
        and plan.fresh is None
        and plan.schedule.start < step
    ):
        return plan.schedule(step)
    return _just_averaged(workers, reduce)


def _just_averaged(workers: Workers, reduce: Reduce) -> list[int]:
    """The parts that no worker, here or elsewhere, has changed since their last averaging."""
    try:
        steps = reduced(reduce, workers.steps.sum(0))
    except LeftOut:
        return []  # nobody knows
    return [part for part, sum_ in enumerate(steps.tolist()) if not sum_]
