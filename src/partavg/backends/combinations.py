"""What does not go together, refused before anything is built: one sentence for each."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from partavg.attacks.attack import Attack
from partavg.backends.cutting import Cut, draws_columns
from partavg.backends.private import check_private
from partavg.backends.request import Request
from partavg.core.abilities import abilities, described, name_of
from partavg.core.adapt import Adapt
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.core.arguments import check_choice, check_kind, check_whole
from partavg.core.participation import Participation
from partavg.core.partition import Span
from partavg.core.plan import check_mix
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.trial import (
    knows_without_average,
    sends_only_parameters,
    sends_parameters,
)
from partavg.core.wire_formats import WIRE_FORMATS
from partavg.registry import mismatch
from partavg.sentences import shown


def check_request(request: Request) -> None:
    """Raise a ValueError for whatever can be told before a model is there."""
    solver, put_away = request.solver, request.puts_away
    check_needs(
        solver,
        put_away=put_away,
        uneven=request.uneven,
        delay=request.delay,
        mix=request.mix,
        called=request.called,
    )
    check_fresh(request.partition, solver, request.schedule, request.delay, request.adapt)
    check_aggregate(request.aggregate, solver)
    check_attack(request.attack, solver)
    check_wire(request.wire, request.partition, collects=request.collects, put_away=put_away)
    check_listening(request)
    check_private(request)
    check_recut(request.adapt, request.partition, put_away=put_away)


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


def check_listening(request: Request) -> None:
    """Raise a ValueError for what does not go with averages that those who leave do not get."""
    who, schedule = request.participation, request.schedule
    if who is None:
        return
    in_cycles(who, schedule)
    if who.rolling and (request.adapt is not None or schedule.multiples):
        raise ValueError(
            "participation.rolling = true does not go with an interval that adapts, nor with a "
            "schedule with multiples: its draws come after cycles; leave one of them out"
        )
    if who.redistribution != "listen" or not who.moves:
        return
    others = {
        f"averaging.delay = {request.delay}": request.delay > 0,
        f"averaging.mix = {request.mix}": request.mix is not None,
        f"averaging.buffers = {request.buffers!r}": request.buffers == "frozen",
        f"averaging.wire = {request.wire!r}": WIRE_FORMATS[request.wire].codec is not None,
        f"averaging.partition = {request.partition!r}": draws_columns(request.partition),
        "an interval that adapts": request.adapt is not None,
        "an aggregate other than the mean, or an attack": request.collects,
        "a schedule with multiples": bool(schedule.multiples),
    }
    for name, given in others.items():
        if given:
            raise ValueError(
                f"participation.redistribution = 'listen' does not go with {name}: leave that out, "
                f"or use permute or average"
            )
    if abilities(request.solver).keeps_apart or not knows_without_average(request.solver):
        raise ValueError(
            f"{request.solver_name} remembers averages for each worker, which those who leave do "
            f"not get with participation.redistribution = 'listen': use permute or average, or "
            f"another solver, like sgd with local momentum"
        )


def in_cycles(participation: Participation | None, schedule: Schedule) -> Participation | None:
    """A participation that knows how long a cycle is; a ValueError if it cannot follow cycles."""
    return participation and replace(participation, interval=schedule.interval)


def check_wire(
    wire: str, partition: Cut, *, collects: bool = False, put_away: bool = False
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
    if collects:
        raise ValueError(
            f"wire {wire!r} does not go with an aggregate other than the mean, or an attack, which "
            f"must see whole messages of all workers: leave one of them out"
        )
    if put_away:
        raise ValueError(
            f"wire {wire!r} adds to a model's next message what rounding lost of this one, and "
            f"with participation.redistribution = 'none' models are put away: use permute or "
            f"average, or full"
        )


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


def check_recut(
    adapt: Adapt | None,
    partition: Cut,
    *,
    put_away: bool = False,
) -> None:
    """Raise a ValueError if a partition, or models put away, could not follow a new schedule."""
    if adapt and put_away:
        raise ValueError(
            "a schedule that adapts cuts models anew, but with participation.redistribution = "
            "'none' some are put away: use permute or average"
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
    if getattr(aggregate, "needs_parameters", False):
        _check_robust(described(aggregate), solver)
    if aggregate is not weighted_sum and abilities(solver).keeps_apart:
        raise ValueError(
            f"solver {name_of(solver)} keeps workers apart, and an aggregate must know what they "
            f"have in common: use a solver that does not, or the weighted sum"
        )


def _check_robust(called: str, solver: Solver) -> None:
    """Raise a ValueError for a solver whose messages, or what it makes of them, must be a mean."""
    name = name_of(solver)
    if abilities(solver).estimates_gradients:
        raise ValueError(
            f"solver {name} corrects gradients by what workers differ from their mean, and "
            f"{called} is none: use a solver like sgd, fedprox, adam or diloco"
        )
    if not sends_only_parameters(solver):
        raise ValueError(
            f"solver {name} sends more than its parameters, or something else, and {called} looks "
            f"at these: use a solver that sends nothing else, like sgd with local momentum"
        )


def check_attack(attack: Attack | None, solver: Solver) -> None:
    """Raise a ValueError for no attack, or one on parameters that are not sent."""
    if attack is None:
        return
    check_kind("attack", attack, Attack, "one, like partavg.attacks.SignFlip(0.2)")
    if attack.lies and not sends_parameters(solver):
        raise ValueError(
            f"solver {name_of(solver)} does not send its parameters, which attackers lie about: "
            f"use another solver, like sgd"
        )
