"""From policies, as a user names them, to what the training loop needs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import abilities, name_of
from partavg.core.adapt import Adapt
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.core.arguments import check_choice, check_whole
from partavg.core.buffer_parts import partition_buffers
from partavg.core.cuts import PARTITIONS, by_name, fresh
from partavg.core.fragments import Patterns
from partavg.core.fresh import Fresh
from partavg.core.layout import Layout
from partavg.core.local_columns import LocalColumns, Sharing, sharing
from partavg.core.pace import Pace
from partavg.core.participation import Participation, Swap, swap_
from partavg.core.partition import Partition, Span, merged, without
from partavg.core.plan import Plan, check_mix
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.trial import knows_without_average
from partavg.core.wire_formats import WIRE_FORMATS
from partavg.core.workers import Workers
from partavg.registry import mismatch
from partavg.sentences import shown

Buffers = Literal["part", "every", "local", "recompute", "frozen"]
WeightsPolicy = Literal["uniform", "samples"]
Weights = WeightsPolicy | Sequence[float] | Tensor
"""p_i by a policy, or a number per client; they need not sum to 1."""
Bank = Literal["device", "cpu"]
Cut = str | Partition | Patterns
"""How a model is cut: by the name of a maker, in parts of one's own, or by names of tensors."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes the plan of a schedule, also of those that follow the first."""

    params: Sharing
    statistics: Sharing
    partition: Cut
    buffers: str
    weights: Float[Tensor, "n"]
    participation: Participation | None = None
    pace: Pace | None = None
    delay: int = 0
    seed: int = 0
    rows: slice = field(default_factory=lambda: slice(None))
    swap: Swap = swap_
    aggregate: Aggregate = weighted_sum
    counters: tuple[int, ...] = ()
    mix: float | None = None
    wire: str = "full"
    shared: frozenset[str] = frozenset()
    frozen: tuple[Span, ...] = ()
    """Statistics that are frozen by now."""

    def __call__(self, schedule: Schedule) -> Plan:
        """A plan; a delay that does not fit a shorter interval is shortened."""
        params, count, drawn = self.params, schedule.parts, None
        cut = cut_of(params, self.partition, count, self.seed)
        parts = tuple(map(params.among_all, cut.parts))
        buffers = map(self.statistics.among_all, self._buffer_parts(cut))
        if count > 1 and draws_columns(self.partition):
            drawn = Fresh(merged(chain(*parts)), count, self.seed)
        return Plan(
            schedule,
            Partition(params.layout.size, parts, params.local_spans),
            tuple(without(spans, self.frozen) for spans in buffers),
            self.weights,
            self.participation,
            self.pace,
            min(self.delay, schedule.interval - 1),
            self.rows,
            self.swap,
            self.aggregate,
            self.seed,
            self.counters,
            self.statistics.local_spans,
            self.mix,
            drawn,
            wire=self.wire,
            frozen=self.frozen,
            shared=self.shared,
        )

    def _buffer_parts(self, partition: Partition) -> tuple[tuple[Span, ...], ...]:
        """The shared columns of buffers that go with each part."""
        if self.buffers not in get_args(Buffers):
            known = ", ".join(get_args(Buffers))
            raise ValueError(f"buffers {shown(self.buffers)} is not known: use {known}")
        if self.buffers in ("part", "frozen"):
            return partition_buffers(partition, self.params.shared, self.statistics.shared).parts
        size = self.statistics.shared.size
        everything = (Span(0, size),) if self.buffers == "every" and size else ()
        return (everything,) * len(partition.parts)


def draws_columns(partition: Cut) -> bool:
    """Whether a partition is that which draws other columns for every averaging."""
    return isinstance(partition, str) and PARTITIONS.find(partition) is fresh


def cut_of(params: Sharing, given: Cut, parts: int, seed: int) -> Partition:
    """The partition of what is shared, as a name, parts of one's own or patterns say it."""
    if isinstance(given, str):
        cut = partition_of(params.shared, given if parts > 1 else "whole", parts, seed)
        check_covers(cut, params.shared)
        return cut
    if isinstance(given, list | tuple):
        return by_name(params.shared, given)
    return of_shared(cast(Partition, given), params)


def partition_of(params: Layout, name: str, parts: int, seed: int) -> Partition:
    """The partition of a model that a name stands for."""
    make = PARTITIONS.find(name)
    if problem := mismatch(make, params, parts, seed):
        raise ValueError(
            f"partition {name!r} cannot be called with a layout, the number of parts and a seed: "
            f"{problem}"
        )
    cut: object = make(params, parts, seed)
    if not isinstance(cut, Partition):
        raise ValueError(
            f"partition {name!r} gave {type(cut).__name__}, and not a Partition: mend the function"
        )
    return cut


def client_weights(policy: Any, split: Sequence[Tensor]) -> Float[Tensor, "m"]:
    """p_i of all clients: by a policy, or in proportion to a number for each.

    >>> client_weights([3, 1], [torch.arange(5), torch.arange(5)])
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    if isinstance(policy, str) and policy in get_args(WeightsPolicy):
        counts = torch.tensor([len(samples) for samples in split], dtype=torch.float64)
        weights = counts if policy == "samples" else torch.ones_like(counts)
    else:
        weights = _listed_weights(policy, len(split))
    return weights / weights.sum()


def _listed_weights(given: Any, clients: int) -> Float[Tensor, "m"]:
    """A number for each client, checked."""
    known = " or ".join(get_args(WeightsPolicy))
    if isinstance(given, str) or not hasattr(given, "__len__"):
        raise ValueError(
            f"weights {shown(given)} is not known: use {known}, or a number per client"
        )
    try:
        weights = torch.as_tensor(given, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"weights {shown(given)} are no numbers: give one per client") from None
    if weights.shape != (clients,):
        raise ValueError(
            f"weights of shape {list(weights.shape)} are not for {clients} clients: give a number "
            f"for each"
        )
    wrong = ~(weights.isfinite() & (weights >= 0))
    if wrong.any():
        client = int(wrong.nonzero()[0])
        raise ValueError(
            f"the weight of client {client} is {float(weights[client])}: give numbers from 0"
        )
    if not weights.any():
        raise ValueError("all weights are 0: give at least one client more")
    return weights / weights.max() if weights.sum().isinf() else weights


def check_drawn_weights(weights: Float[Tensor, "m"], participation: Participation | None) -> None:
    """Raise a ValueError if all clients of a draw could weigh nothing."""
    idle = int((weights == 0).sum())
    if participation and idle >= participation.active:
        raise ValueError(
            f"{idle} clients have weight 0, so that none of {participation.active} active ones may "
            f"count: give weights above 0 with participation"
        )


def kept(
    participation: Participation,
    solver: Solver,
    workers: Workers,
    shared: Collection[str],
    local: LocalColumns,
) -> tuple[str, ...]:
    """What clients keep for themselves when they are not active, never what all workers share."""
    common = {f"memory.{name}" for name in shared}
    rows = tuple(name for name in workers.row_names if name not in common)
    if participation.redistribution == "none":
        return rows
    own = tuple(f"memory.{name}" for name in abilities(solver).per_client)
    some = tuple(f"local.{name}" for name in rows if name not in own and local.of(name))
    return own + some + tuple(name for name in rows if name == "local_taken")


def bank_device(name: str, device: torch.device) -> torch.device:
    """Where the bank is."""
    if name not in get_args(Bank):
        raise ValueError(f"bank {name!r} is not known: use {' or '.join(get_args(Bank))}")
    return device if name == "device" else torch.device("cpu")


def check_needs(
    solver: Solver,
    *,
    put_away: bool = False,
    uneven: bool = False,
    delay: int = 0,
    mix: float | None = None,
    called: str = "",
) -> None:
    """Raise a ValueError if a solver would not get what it says that it needs.

    Models may be `put_away` while others train, the pace may be `uneven`, averages come late, or
    are taken over in part only.
    """
    check_mix(mix)
    said, name = abilities(solver), called or f"solver {name_of(solver)}"
    if put_away and said.needs_last_average:
        raise ValueError(
            f"{name} compares models with the last average, but with "
            f"participation.redistribution = 'none' a model may be older: use permute or average"
        )
    if uneven and said.needs_equal_steps:
        raise ValueError(
            f"{name} needs workers that take the same steps: use pace.name = even, or another "
            f"solver, like scaffold"
        )
    if delay and not said.allows_delay:
        raise ValueError(
            f"{name} cannot take averages that arrive late, or not with momentum that changes "
            f"then: use averaging.delay = 0, or momentum_at_averaging = local"
        )
    if mix is not None and (mix or delay) and said.needs_last_average:
        raise ValueError(
            f"{name} compares models with the last average, and with mix = {mix} they do not begin "
            f"there: leave mix out"
        )


def check_fresh(
    partition: Cut, solver: Solver, schedule: Schedule, delay: int, adapt: Adapt | None
) -> None:
    """Raise a ValueError for what must know when a column was last averaged, which was drawn."""
    if not draws_columns(partition) or schedule.parts == 1:
        return
    said = abilities(solver)
    if said.needs_last_average or said.estimates_gradients:
        raise ValueError(
            f"solver {name_of(solver)} counts the steps since a part was averaged, and fresh "
            f"columns are averaged at random: use another partition, like channel"
        )
    if adapt and adapt.measures:
        raise ValueError(
            f"adapt {type(adapt).__name__} measures parts, and fresh columns are others every "
            f"time: use another partition, like layer"
        )
    if delay and delay >= schedule.gap:
        raise ValueError(
            f"delay {delay} lets a column be drawn again while its average is on its way, since "
            f"fresh columns are drawn after {schedule.gap} steps again: use a delay below that"
        )


def check_listening(
    participation: Participation | None,
    schedule: Schedule,
    solver: Solver,
    *,
    partition: Cut,
    buffers: str = "part",
    delay: int = 0,
    mix: float | None = None,
    wire: str = "full",
    adapt: Adapt | None = None,
    aggregate: Aggregate = weighted_sum,
    called: str = "",
) -> None:
    """Raise a ValueError for what does not go with averages that those who leave do not get."""
    if participation is None or participation.redistribution != "listen":
        return
    in_cycles(participation, schedule)
    others = {
        f"averaging.delay = {delay}": delay > 0,
        f"averaging.mix = {mix}": mix is not None,
        f"averaging.buffers = {buffers!r}": buffers == "frozen",
        f"averaging.wire = {wire!r}": WIRE_FORMATS[wire].codec is not None,
        f"averaging.partition = {partition!r}": draws_columns(partition),
        "an interval that adapts": adapt is not None,
        "an aggregate of your own": aggregate is not weighted_sum,
        "a schedule with multiples": bool(schedule.multiples),
    }
    for name, given in others.items():
        if given:
            raise ValueError(
                f"participation.redistribution = 'listen' does not go with {name}: leave that out, "
                f"or use permute or average"
            )
    if abilities(solver).keeps_apart or not knows_without_average(solver):
        raise ValueError(
            f"{called or f'solver {name_of(solver)}'} remembers averages for each worker, which "
            f"those who leave do not get with participation.redistribution = 'listen': use permute "
            f"or average, or another solver, like sgd with local momentum"
        )


def in_cycles(participation: Participation | None, schedule: Schedule) -> Participation | None:
    """A participation that knows how long a cycle is; a ValueError if it cannot follow cycles."""
    return participation and replace(participation, interval=schedule.interval)


def check_wire(
    wire: str,
    partition: Cut,
    aggregate: Aggregate = weighted_sum,
    *,
    put_away: bool = False,
) -> None:
    """Raise a ValueError for no wire format, or one that could not send later what it lost."""
    check_choice("wire", wire, list(WIRE_FORMATS))
    if WIRE_FORMATS[wire].codec is None:
        return
    if draws_columns(partition):
        raise ValueError(
            f"wire {wire!r} adds to a part's next message what rounding lost of this one, and "
            f"fresh columns are others every time: use full, or another partition"
        )
    if aggregate is not weighted_sum:
        raise ValueError(
            f"wire {wire!r} does not go with an aggregate of your own, which must see whole "
            f"messages of all workers: leave one of them out"
        )
    if put_away:
        raise ValueError(
            f"wire {wire!r} adds to a model's next message what rounding lost of this one, and "
            f"with participation.redistribution = 'none' models are put away: use permute or "
            f"average, or full"
        )


def what_is_shared(
    local: Sequence[str], params: Layout, buffers: Layout, policy: str
) -> tuple[Sharing, Sharing]:
    """What of parameters and buffers is shared; a ValueError if statistics could not be made."""
    found = sharing(local, params, buffers)
    if local and policy == "recompute":
        raise ValueError(
            f"buffers 'recompute' makes statistics for one model of all workers, and with local "
            f"{list(local)} there is none: use part, every or local"
        )
    if found[1].local_spans and policy == "frozen":
        raise ValueError(
            f"buffers 'frozen' gives all workers the same statistics, and local {list(local)} "
            f"keeps some apart: use part, every or local"
        )
    return found


def check_freezing(buffers: str, freeze_at: Any, statistics: Sequence[Span]) -> None:
    """Raise a ValueError if it is not said when statistics are frozen, or there are none."""
    if buffers != "frozen":
        if freeze_at is not None:
            raise ValueError(
                f"freeze_at {shown(freeze_at)} is for statistics that are frozen, and buffers are "
                f"{shown(buffers)}: use buffers = 'frozen', or leave it out"
            )
        return
    if freeze_at is None:
        raise ValueError(
            "buffers 'frozen' must know after which step: give freeze_at, for example half of all "
            "steps"
        )
    check_whole("freeze_at", freeze_at, 1)
    if not statistics:
        raise ValueError(
            "buffers 'frozen' freezes BatchNorm's statistics, and the model trains none: use part, "
            "or a model with BatchNorm"
        )


def check_covers(cut: Partition, params: Layout, local: tuple[Span, ...] = ()) -> None:
    """Raise a ValueError if a partition is of another model, or leaves out what is not local."""
    if not isinstance(cut, Partition):
        raise ValueError(
            f"partition {shown(cut)} is none: give a partavg.Partition, the name of a function "
            f"that makes one, like channel, or lists of patterns of names"
        )
    if cut.size != params.size:
        raise ValueError(
            f"the partition has {cut.size} columns and the model {params.size}: cut the model "
            f"that is trained, for example by partavg.by_channel"
        )
    if cut.local not in ((), local):
        start, stop = next((span for span in cut.local if span not in local), cut.local[0])
        raise ValueError(
            f"the partition leaves out columns {start} to {stop}: name their parameters as local, "
            f"or put them into a part"
        )


def of_shared(cut: Partition, params: Sharing) -> Partition:
    """What a user's own partition makes of the shared columns: local ones belong to no part."""
    check_covers(cut, params.layout, params.local_spans)
    parts = tuple(map(params.among_shared, cut.parts))
    if params.local and not all(parts):
        raise ValueError(
            f"part {parts.index(())} of the partition has nothing but local columns: cut the model "
            f"so that each part has something to average"
        )
    return Partition(params.shared.size, parts)


def check_recut(
    adapt: Adapt | None,
    partition: Cut,
    *,
    put_away: bool = False,
    called: str = "a schedule that adapts",
) -> None:
    """Raise a ValueError if a partition, or models put away, could not follow a new schedule."""
    if adapt and put_away:
        raise ValueError(
            f"{called} cuts models anew, but with participation.redistribution = 'none' some are "
            f"put away: use permute or average"
        )
    if adapt and not isinstance(partition, str):
        raise ValueError(
            "a schedule that adapts cuts the model anew: give the name of a partition, like "
            "channel, and not a Partition"
        )


def check_aggregate(aggregate: Aggregate, solver: Solver) -> None:
    """Raise a ValueError for no function, or one that could not be told what workers share."""
    if isinstance(aggregate, type) or mismatch(aggregate, None, None, None):
        raise ValueError(
            f"aggregate {shown(aggregate)} is no function of messages, weights and what they are "
            f"about: give one, or an object that can be called like it"
        )
    if aggregate is not weighted_sum and abilities(solver).keeps_apart:
        raise ValueError(
            f"solver {name_of(solver)} keeps workers apart, and an aggregate must know what they "
            f"have in common: use a solver that does not, or the weighted sum"
        )
