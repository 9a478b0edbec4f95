"""The table that a comparison ends with."""

from collections.abc import Sequence

from partavg.cli.fitted import Fitted
from partavg.comparison import CLIENTS, Result, caveat, note
from partavg.metrics.table import columns
from partavg.pairs import compared, how
from partavg.verdict import main_metric


def comparison_table(found: Sequence[Result]) -> Fitted:
    """The results of a comparison, a line per scheme."""
    said = caveat([summary for result in found for summary in result.summaries])
    every = columns(
        (summary for result in found for summary in result.summaries),
        (metric for result in found for metric in result.metrics),
    )
    shown = [column for column in every if any(result.values(column.key) for result in found)]
    clients = any(column.key.startswith("clients_") for column in shown)
    metric = main_metric(found)
    pairs = compared(found, metric) if metric else []
    notes = [
        note(found),
        *([CLIENTS] if clients else []),
        *([f"{said.capitalize()}."] if said else []),
        how(pairs),
    ]
    head = ["scheme", *(column.heading for column in shown)]
    rows = [
        [result.scheme, *(result.text(one.key, one.form, one.scale) for one in shown)]
        for result in found
    ]
    if pairs and metric:  # beside what schemes are compared by
        against = {pair.scheme: pair.cell for pair in pairs}
        place = next((p for p, one in enumerate(shown, 2) if one.key == metric.key), len(head))
        head.insert(place, f"against {pairs[0].reference}")
        for row in rows:
            row.insert(place, against.get(row[0], "–"))
    return Fitted(head, rows, notes=" ".join(filter(None, notes)))
