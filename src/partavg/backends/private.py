"""Private simulations: what would break the promise is refused, one sentence for each."""

from collections.abc import Sequence

from partavg.backends.cutting import draws_columns
from partavg.backends.request import Request
from partavg.core.abilities import abilities, name_of
from partavg.core.aggregate import weighted_sum
from partavg.core.participation import Participation
from partavg.core.partition import Span
from partavg.core.poisson import Poisson
from partavg.core.private import PrivateMean, Quantile
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.trial import message_length, sends_parameters
from partavg.privacy.accountant import check_installed
from partavg.privacy.settings import Privacy
from partavg.privacy.spending import Spending
from partavg.sentences import shown

_WORDS = "participation.redistribution"


def check_private(request: Request) -> None:
    """Raise a ValueError for what a private run cannot have, or what only a private one can."""
    privacy, who, schedule = request.privacy, request.participation, request.schedule
    if privacy is None:
        if who and who.redistribution == "released":
            raise ValueError(
                f"{_WORDS} = 'released' is for private runs: give privacy, or use average or listen"
            )
        return
    if not isinstance(privacy, Privacy):
        raise ValueError(f"privacy {shown(privacy)} is none: give partavg.Privacy(clip=…, noise=…)")
    if privacy.noise:
        check_installed()
    _check_delta(privacy, request.clients)
    _check_participation(who, schedule)
    weights = request.weights
    others = {
        f"averaging.weights = {shown(weights)}, which tells of clients' samples or favors some": (
            not isinstance(weights, str) or weights != "uniform"
        ),
        "averaging.buffers = 'recompute', which measures statistics on all clients' samples": (
            request.buffers == "recompute"
        ),
        f"averaging.delay = {request.delay}": request.delay > 0,
        f"averaging.mix = {request.mix}, which hands over models that were not clipped": (
            request.mix is not None
        ),
        f"averaging.wire = {request.wire!r}, which rounds what was clipped": (
            request.wire != "full"
        ),
        "averaging.partition = 'fresh', whose columns are not averaged once in a cycle": (
            draws_columns(request.partition)
        ),
        "an interval that adapts to what clients do": request.adapt is not None,
        "a schedule with multiples or a start, whose cycles differ": (
            bool(schedule.multiples) or schedule.start > 0
        ),
        "an aggregate other than its own sum": request.aggregate is not weighted_sum,
        "an attack, whose lies would not be clipped": request.attack is not None,
    }
    for name, given in others.items():
        if given:
            raise ValueError(f"privacy does not go with {name}: leave that out")
    check_private_solver(request.solver, who, request.called)


def check_private_solver(
    solver: Solver, participation: Participation | None = None, called: str = ""
) -> None:
    """Raise a ValueError for messages that cannot be clipped as a change of parameters."""
    name, said = called or f"solver {name_of(solver)}", abilities(solver)
    if tuple(message_length(solver)) != (1, 0, 0) or not sends_parameters(solver):
        raise ValueError(
            f"{name} sends more than its parameters, or something else, which privacy does not "
            f"clip: use another solver, like sgd, adam, fedprox or fedavgm"
        )
    if said.keeps_apart:
        raise ValueError(
            f"{name} keeps clients apart, and privacy must know what they have in common: use "
            f"another solver, like sgd"
        )
    if said.per_client and participation:
        raise ValueError(
            f"{name} counts on what each client remembers of all cycles, and with privacy clients "
            f"that are drawn begin anew: use another solver, like sgd"
        )


def check_private_buffers(
    sent: Sequence[Sequence[Span]],
    statistics: Sequence[Span],
    local: Sequence[Span],
    participation: Participation | None,
) -> None:
    """Raise a ValueError for buffers that would be sent, or left to whoever comes next."""
    remedy = "use averaging.local patterns that name them, or a model without, like GroupNorm"
    if any(sent):
        also = "" if participation else "averaging.buffers = 'local', "
        raise ValueError(
            f"privacy clips changes of parameters, and the buffers of this model, like BatchNorm's "
            f"statistics, would be sent as they are: {remedy.replace('use ', f'use {also}', 1)}"
        )
    own = any(a <= start and stop <= b for start, stop in statistics for a, b in local)
    if statistics and participation and not own:
        raise ValueError(
            f"privacy draws other clients for every cycle, who would take over the statistics of "
            f"others with averaging.buffers = 'local': {remedy}"
        )


def _check_delta(privacy: Privacy, clients: int) -> None:
    if privacy.delta >= 1 / clients:
        raise ValueError(
            f"privacy.delta = {privacy.delta:g} is not below 1 / {clients} clients, which would "
            f"let a run tell all about one of them: use less, like {0.1 / clients:.0e}"
        )


def _check_participation(who: Participation | None, schedule: Schedule) -> None:
    if who is None or (who.active == who.clients and not who.every):
        return
    if who.redistribution != "released":
        why = {
            "permute": "hands over models that were not clipped",
            "average": "averages models that were not clipped",
            "listen": "lets models that were not clipped go on beside those released",
            "none": "goes on from models of other cycles",
        }[who.redistribution]
        raise ValueError(
            f"privacy does not go with {_WORDS} = {who.redistribution!r}, which {why}: use "
            f"'released', where all who are drawn begin with what was last released"
        )
    if who.rolling or who.every != schedule.interval:
        raise ValueError(
            f"privacy draws all clients by chance once per cycle, and participation.every = "
            f"{who.every}{', rolling' if who.rolling else ''}: use {schedule.interval}, as "
            f"averaging.interval"
        )


def by_chance(who: Participation | None) -> Participation | None:
    """Clients drawn each by itself, where others would be drawn in a fixed number."""
    if who is None or not who.every:
        return None
    return Poisson.of(who.clients, who.active / who.clients, who.every, who.seed)


def fraction_of(who: Participation | None) -> float:
    """Of the clients, how many are expected."""
    return who.fraction if isinstance(who, Poisson) else 1.0


def private_mean(privacy: Privacy | None, clients: int, fraction: float) -> PrivateMean | None:
    """What becomes of the messages; the parts' shares are those of the plan's partition."""
    if privacy is None:
        return None
    expected, quantile = fraction * clients, None
    if privacy.quantile is not None:
        noise = privacy.bit_noise(expected) if privacy.noise else 0.0
        quantile = Quantile(privacy.quantile, privacy.quantile_rate, noise)
    return PrivateMean(
        privacy.clip,
        privacy.noise_of_sums(expected),
        (),
        expected,
        privacy.local,
        quantile,
    )


def spending(privacy: Privacy | None, fraction: float, schedule: Schedule) -> Spending | None:
    """What a run spends; None where it promises nothing."""
    return None if privacy is None else Spending(privacy, fraction, schedule)
