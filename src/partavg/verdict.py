"""What a comparison found, in plain sentences that claim no more than its seeds tell."""

from collections.abc import Sequence
from statistics import mean

from partavg.comparison import VALIDATION, Result, caveat, mixed
from partavg.metrics import table
from partavg.metrics.metric import Metric
from partavg.pairs import NOT_EVIDENCE, Compared, Difference, best, compared, ranked

__all__ = ["Compared", "Difference", "compared", "main_metric", "verdict"]


def verdict(found: Sequence[Result]) -> str:
    """What was seen, of partial against periodic averaging where both are there."""
    summaries = [summary for result in found for summary in result.summaries]
    said = caveat(summaries)
    seen = _seen([result for result in found if result.summaries])
    return f"{said.capitalize()}. {seen}" if said else seen


def main_metric(found: Sequence[Result]) -> Metric | None:
    """What results are compared by."""
    summaries = [summary for result in found for summary in result.summaries]
    return table.main_metric(summaries, [metric for each in found for metric in each.metrics])


def _seen(found: Sequence[Result]) -> str:
    metric = main_metric(found)
    if metric is None or not all(result.values(metric.key) for result in found):
        return "There is no result that all runs have, so that they cannot be compared."
    if mixed(found):
        return (
            f"Some of these runs were judged {VALIDATION} and others on the test set: they cannot "
            f"be compared."
        )
    pairs = compared(found, metric)
    periodic = next((result for result in found if result.scheme == "periodic"), None)
    others = [result for result in found if result is not periodic]
    if periodic is None or not others:
        return _best(found, metric, pairs)
    ours = next((one for one in others if one.scheme == "partial"), best(others, metric))
    pair = next(pair for pair in pairs if pair.scheme == ours.scheme)
    called = "partial averaging" if ours.scheme == "partial" else ours.scheme
    if not pair.difference.seeds:
        name = "Partial" if ours.scheme == "partial" else ours.scheme
        return f"{name} and periodic averaging have no seed in common, and cannot be compared."
    return (
        f"{_traffic(ours, periodic)}, {called} ended {_against(pair)}"
        f"{_discrepancy(ours, periodic)}.{_tally(pairs)}"
    )


def _against(pair: Compared) -> str:
    """How far from periodic averaging it ended, and whether the seeds can tell."""
    found = pair.difference
    few = NOT_EVIDENCE.get(found.seeds)
    if found.level:
        seeds = f" ({few})" if few else f", mean of {found.seeds} seeds"
        value = found.text(mean(found.ours))
        return f"level with periodic averaging in {found.metric.called}, at {value}{seeds}"
    side = "above" if found.gap > 0 else "below"
    if pair.outcome == "tie":
        return (
            f"in a tie with periodic averaging: {found.size} {side} it ({found.means}; "
            f"{found.range}), {_untold(pair)}"
        )
    seeds = found.range if few else f"{found.range}, {found.seeds} seeds"
    return f"{found.size} {side} periodic averaging ({found.means}; {seeds})"


def _untold(pair: Compared) -> str:
    """That it is a tie, and why where the interval alone does not say so."""
    said = f"no difference that {pair.difference.seeds} seeds can tell"
    low, high = pair.interval or (0.0, 0.0)
    return said if low <= 0 <= high else f"{said} (p = {pair.adjusted:.2g} by Holm)"


def _tally(pairs: Sequence[Compared]) -> str:
    """How all schemes ended against the reference, where there are several."""
    tested = [pair for pair in pairs if pair.p is not None]
    if len(tested) < 2:
        return ""
    said = [
        f"{len(those)} {words} ({', '.join(those)})"
        for outcome, words in (("ahead", "ahead"), ("behind", "behind"), ("tie", "tied with it"))
        if (those := [pair.scheme for pair in tested if pair.outcome == outcome])
    ]
    return f" Of {len(tested)} schemes against {pairs[0].reference}, by Holm: {', '.join(said)}."


def _best(found: Sequence[Result], metric: Metric, pairs: Sequence[Compared]) -> str:
    """Who ended best, if the seeds can tell."""
    worth = "highest" if metric.better == "higher" else "lowest"
    first, *rest = ranked(found, metric)
    called = metric.called
    shown = Difference.of(first, first, metric)
    value = shown.text(mean(shown.ours))
    seeds = NOT_EVIDENCE.get(shown.seeds, f"{shown.seeds} seeds")
    if not rest:
        count = "one seed" if shown.seeds == 1 else f"{shown.seeds} seeds"
        return f"{first.scheme} ended with the {called} {value} ({count})."
    by_scheme = {pair.scheme: pair for pair in pairs}
    rivals = [by_scheme[other.scheme] for other in rest]
    if not all(rival.difference.seeds for rival in rivals):
        return "These schemes have no seed in common, and cannot be compared."
    level = [rival.scheme for rival in rivals if rival.difference.level]
    if level:
        names = f"{', '.join([first.scheme, *level][:-1])} and {level[-1]}"
        return f"{names} ended level with the {worth} {called}: {value} ({seeds})."
    second = rivals[0]
    few, interval = NOT_EVIDENCE.get(second.difference.seeds), second.difference.turned.range
    if few:
        return f"{first.scheme} ended with the {worth} {called}: {value} ({few})."
    if second.outcome == "tie":
        return (
            f"{first.scheme} ended with the {worth} mean {called}, {value}, in a tie with "
            f"{second.scheme}: {_untold(second)} ({interval}).{_tally(pairs)}"
        )
    return (
        f"{first.scheme} ended with the {worth} {called}: {value}, ahead of {second.scheme} "
        f"({interval}, {second.difference.seeds} seeds).{_tally(pairs)}"
    )


def _traffic(partial: Result, periodic: Result) -> str:
    ours, theirs = partial.values("bytes"), periodic.values("bytes")
    if not (ours and theirs):
        return "Where traffic was not counted"
    if not mean(theirs):
        return "While periodic averaging sent nothing yet"
    ratio = mean(ours) / mean(theirs)
    return "At the same traffic" if abs(ratio - 1) < 0.01 else f"At {ratio:.2f} times the traffic"


def _discrepancy(partial: Result, periodic: Result) -> str:
    ours, theirs = (each.values("peak_discrepancy") for each in (partial, periodic))
    if not (ours and theirs):
        return ""
    if mean(ours) == mean(theirs) == 0:
        return "; there was no discrepancy between the models"
    if mean(theirs) <= 1e-6 * mean(ours):
        return (
            "; the discrepancy of periodic averaging was measured right after averaging only, "
            "where it is 0"
        )
    ratio = mean(ours) / mean(theirs)
    return f"; the peak discrepancy between the models was {ratio:.2f} times that of periodic"
