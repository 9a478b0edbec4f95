"""What every setting of a sweep reached on validation samples against what it cost."""

from collections.abc import Sequence

from partavg.report.pareto import COSTS, PAID, Costs, Spot, costs, front, named, on_front
from partavg.sweeps.findings import Tuned
from partavg.sweeps.space import called


def of_tried(tuned: Sequence[Tuned]) -> list[Costs]:
    """Every setting that was tried to the end; those that were chosen stand out."""
    metric = next((one.metric for one in tuned if one.metric), None)
    whole = [
        (place, one, tried, tried.outcome.value)
        for place, one in enumerate(tuned)
        for tried in one.tried
        if tried.trial.until is None and tried.outcome.value is not None
    ]
    found: list[Costs] = []
    for cost, unit_of in COSTS.items():
        prices = [float(tried.outcome.row.get(cost, 0)) for _, _, tried, _ in whole]
        if metric is None or not any(prices):
            continue
        unit = unit_of(max(prices))
        spots = [
            Spot(
                place,
                f"{one.scheme} {called(tried.trial.point)}",
                price / unit.size,
                value * metric.scale,
                faint=one.chosen is None or tried.trial != one.chosen.trial,
            )
            for (place, one, tried, value), price in zip(whole, prices, strict=True)
        ]
        spots.sort(key=lambda spot: not spot.faint)
        best = front(spots, metric.better)
        note = (
            f"{named(metric)} on validation samples against {PAID[cost]}, {tuned[0].by}; faint: "
            f"not chosen"
        )
        schemes = [one.scheme for one in tuned]
        said = on_front(best, unit, metric)
        found.append(costs(cost, note, metric, unit, schemes, spots, best, said, tried=True))
    return found
