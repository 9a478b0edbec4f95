"""Which plan to choose at an interval."""

from dataclasses import dataclass, replace
from math import ceil, isqrt

from partavg.core.schedule import Schedule
from partavg.cost.iteration import Cost, Workload, cost
from partavg.cost.network import Network

_AS_FAST = 1.05  # more parts keep the copies closer: worth so much time
_WORTH_A_DELAY = 0.9  # averages that arrive late must save at least a tenth


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A plan and the reason for it."""

    cost: Cost
    reason: str


def candidates(workload: Workload, network: Network, interval: int) -> list[Cost]:
    """Every number of parts that divides the interval, at once and overlapped."""
    whole = Schedule(interval)
    small = [parts for parts in range(1, isqrt(interval) + 1) if interval % parts == 0]
    counts = sorted({*small, *(interval // parts for parts in small)})
    schedules = [replace(whole, parts=parts) for parts in counts]
    found = [cost(workload, network, schedule) for schedule in schedules]
    delays = [_useful_delay(each) for each in found]
    late = zip(schedules, delays, strict=True)
    return found + [cost(workload, network, schedule, delay) for schedule, delay in late if delay]


def recommend(found: list[Cost]) -> Recommendation:
    """The most parts that cost next to no time; overlapped only where that saves a tenth."""
    at_once = _closest([each for each in found if not each.delay])
    late = _closest([each for each in found if each.delay] or [at_once])
    saved = late.seconds < _WORTH_A_DELAY * at_once.seconds
    chosen = late if saved else at_once
    rivals = [each for each in found if bool(each.delay) == bool(chosen.delay)]
    said = [_about_parts(chosen, rivals)]
    if late.delay:
        said.append(_about_delay(at_once, late, chosen))
    return Recommendation(chosen, ", and ".join(said))


def long_enough(workload: Workload, network: Network, interval: int) -> int:
    """The interval, doubled until its steps take as long as exchanging the model once."""
    while network.seconds(workload.size) > interval * workload.step:
        interval *= 2
    return interval


def _useful_delay(at_once: Cost) -> int:
    """The shortest delay that hides as much of the exchange as any."""
    apart = at_once.schedule.interval // at_once.schedule.parts
    longest = min(apart, at_once.schedule.interval - 1)
    return min(longest, ceil(at_once.exchanging * apart / at_once.step))


def _closest(found: list[Cost]) -> Cost:
    """The plan with the most parts among those that are as good as the fastest."""
    limit = _AS_FAST * min(each.seconds for each in found)
    return max(
        (each for each in found if each.seconds <= limit), key=lambda each: each.schedule.parts
    )


def _about_parts(chosen: Cost, rivals: list[Cost]) -> str:
    """Why this many parts and not more."""
    parts, interval = chosen.schedule.parts, chosen.schedule.interval
    if interval == 1:
        return "an interval of 1 leaves no choice of parts"
    fastest = min(each.seconds for each in rivals)
    if parts == interval:
        longer = chosen.seconds / fastest - 1
        time = f"{_percent(longer)} more time than" if longer >= 0.005 else "the time of"
        return f"a part after every step keeps the copies closest, for {time} the fastest plan"
    more = next(each for each in rivals if each.schedule.parts > parts)
    return (
        f"of the plans within {_percent(_AS_FAST - 1)} of the fastest it has the most parts, which "
        f"keeps the copies closest ({more.schedule.parts} parts would take "
        f"{_percent(more.seconds / fastest - 1)} longer)"
    )


def _about_delay(at_once: Cost, late: Cost, chosen: Cost) -> str:
    """What averages that arrive late save, or would save."""
    saved = 1 - late.seconds / at_once.seconds
    saving = _percent(saved)
    if chosen is at_once and saved < 0.005:
        return "overlapping would save nothing"
    if chosen is at_once:
        return f"overlapping would save no more than {saving}"
    steps = "one step" if chosen.delay == 1 else f"{chosen.delay} steps"
    return f"going on for {steps} during an exchange saves {saving} of the time"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
