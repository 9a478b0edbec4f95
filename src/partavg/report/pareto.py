"""Results against what they cost: which schemes nothing beats at their price, the Pareto front."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import mean, stdev

from partavg.comparison import Result, mixed
from partavg.metrics.metric import Metric
from partavg.pairs import ENOUGH, LEVEL, NOT_EVIDENCE, Difference, holm
from partavg.report.axes import Unit, far_apart, unit_of_bytes, unit_of_seconds
from partavg.report.runs import Group
from partavg.report.words import alike
from partavg.sentences import opening
from partavg.student import quantile
from partavg.verdict import main_metric

COSTS: dict[str, Callable[[float], Unit]] = {"bytes": unit_of_bytes, "seconds": unit_of_seconds}
"""What a result is set against, by its key in summaries, and how it is written."""
_TITLES = {"bytes": "traffic", "seconds": "time"}
PAID = {"bytes": "what one worker has sent", "seconds": "the time of a run, as measured"}
"""What is paid, in words."""


@dataclass(frozen=True, slots=True)
class Spot:
    """What something cost and reached."""

    group: int
    """The scheme by its number, which has a color."""
    name: str
    x: float
    y: float
    ends: tuple[float, float] | None = None
    """The 95 % interval of y."""
    faint: bool = False
    """A single seed, or settings that were tried and not chosen."""


@dataclass(frozen=True, slots=True)
class Costs:
    """A result against a cost."""

    key: str
    title: str
    note: str
    x_label: str
    y_label: str
    schemes: Sequence[str]
    spots: list[Spot]
    front: list[Spot]
    """Those that no other beats at no higher cost, the cheapest first."""
    said: str
    """The front in words, and how far the others are from it."""
    log_x: bool = False


def front(spots: Sequence[Spot], better: str) -> list[Spot]:
    """Spots that no other beats at no higher cost, the cheapest first; of equal ones the first."""
    sign = -1 if better == "lower" else 1
    found: list[Spot] = []
    for spot in sorted(spots, key=lambda one: (one.x, -sign * one.y)):
        if not found or sign * spot.y > sign * found[-1].y:
            found.append(spot)
    return found


def of_results(groups: Sequence[Group]) -> list[Costs]:
    """What schemes reached against what they cost: means, their intervals, and single seeds."""
    results = [group.result for group in groups]
    metric = main_metric(results)
    if metric is None or mixed(results) or not alike(groups):
        return []
    found = []
    for cost, unit_of in COSTS.items():
        if not all(result.values(cost) for result in results):
            continue
        unit = unit_of(max(max(result.values(cost)) for result in results))
        means, seeds = [], []
        for place, result in enumerate(results):
            prices, values = result.by_seed(cost, 1 / unit.size), _finite(result, metric)
            if not values:
                continue
            price = mean(prices.values())
            means.append(Spot(place, result.scheme, price, mean(values.values()), _ends(values)))
            if len(values) > 1:
                seeds += [
                    Spot(place, f"{result.scheme}, seed {seed}", prices[seed], value, faint=True)
                    for seed, value in values.items()
                    if seed in prices
                ]
        if not means:
            continue
        best = front(means, metric.better)
        note = f"{named(metric)} against {PAID[cost]}; {_bars(results)}"
        said = [on_front(best, unit, metric), *_behind(means, results, metric)]
        names = [result.scheme for result in results]
        found.append(costs(cost, note, metric, unit, names, [*seeds, *means], best, " ".join(said)))
    return found


def costs(
    cost: str, note: str, metric: Metric, unit: Unit, schemes: Sequence[str],
    spots: list[Spot], best: list[Spot], said: str, *, tried: bool = False,
) -> Costs:  # fmt: skip
    """A result against a cost, on a logarithmic axis where prices are far apart."""
    log = far_apart([spot.x for spot in spots]) and all(spot.x > 0 for spot in spots)
    label = f"{unit.name} sent" if cost == "bytes" else unit.name
    return Costs(
        f"pareto-{'tried-' if tried else ''}{cost}",
        f"{'Settings tried:' if tried else 'Final'} {metric.called} against {_TITLES[cost]}",
        note,
        f"{label} (logarithmic)" if log else label,
        named(metric),
        schemes,
        spots,
        best,
        said,
        log,
    )


def _bars(results: Sequence[Result]) -> str:
    """What bars are, or why there are none."""
    counts = [len(result.summaries) for result in results]
    if max(counts) < ENOUGH:
        return NOT_EVIDENCE.get(max(counts), "")
    fewer = "" if min(counts) >= ENOUGH else f" where there are {ENOUGH} seeds or more"
    return f"95 % intervals of the means{fewer}"


def _finite(result: Result, metric: Metric) -> dict[int, float]:
    values = result.by_seed(metric.key, metric.scale)
    return {seed: value for seed, value in values.items() if isfinite(value)}


def _ends(values: dict[int, float]) -> tuple[float, float] | None:
    if len(values) < ENOUGH:
        return None
    center, count = mean(values.values()), len(values)
    reach = quantile(1 - LEVEL, count - 1) * stdev(values.values()) / sqrt(count)
    return center - reach, center + reach


def _behind(means: Sequence[Spot], results: Sequence[Result], metric: Metric) -> list[str]:
    """Who is behind whom, and whether the seeds can tell; p-values by Holm."""
    found = []
    for spot in means:
        cheaper = [other for other in means if other is not spot and other.x <= spot.x]
        ahead = front(cheaper, metric.better)[-1:]
        if not ahead or front([*ahead, spot], metric.better)[-1] is spot:
            continue
        pair = Difference.of(results[spot.group], results[ahead[0].group], metric)
        found.append((spot, ahead[0], pair))
    tested = [pair.p for *_, pair in found if pair.p is not None]
    corrected = iter(holm(tested))
    said: dict[str, list[tuple[str, str, str]]] = {}
    for spot, ahead_of, pair in found:
        p = next(corrected) if pair.p is not None else None
        few = NOT_EVIDENCE.get(pair.seeds, "no seed in common") if p is None else ""
        tie = (
            f", a tie as far as {pair.seeds} seeds can tell" if p is not None and p >= LEVEL else ""
        )
        gap = pair.size if pair.seeds else "not compared"
        said.setdefault(ahead_of.name, []).append((spot.name, f"{gap}{tie}", few))
    return [_listed(ahead_of, those) for ahead_of, those in said.items()]


def _listed(ahead_of: str, those: Sequence[tuple[str, str, str]]) -> str:
    """Who is behind one of the front; what is true of all of them is said once."""
    few = {few for _, _, few in those}
    common = f"; {few.pop()}" if len(few) == 1 and "" not in few else ""
    details = [(name, gap if common or not few else f"{gap}; {few}") for name, gap, few in those]
    if len(details) == 1:
        name, gap = details[0]
        return f"{name} is behind {ahead_of} ({gap}{common})."
    return f"Behind {ahead_of}: {', '.join(f'{name} ({gap})' for name, gap in details)}{common}."


def on_front(best: Sequence[Spot], unit: Unit, metric: Metric) -> str:
    """The front by name."""
    sign = " %" if metric.unit == "%" else ""
    listed = "; ".join(
        f"{spot.name} ({spot.x:.3g} {unit.name}, {spot.y:{metric.form}}{sign})" for spot in best
    )
    return f"On the front: {listed}."


def named(metric: Metric) -> str:
    """A metric and its unit, at the beginning of a sentence."""
    return opening(metric.called) + (", %" if metric.unit == "%" else "")
