"""The table that a comparison ends with."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from partavg.comparison import CLIENTS, Result, caveat, note
from partavg.metrics.table import columns
from partavg.pairs import compared, how
from partavg.verdict import main_metric


def comparison_table(found: Sequence[Result]) -> Table:
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
    caption = " ".join(filter(None, notes))
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    against = {pair.scheme: pair.cell.replace(" [", "\n[") for pair in pairs}
    table.add_column("scheme", no_wrap=True)
    for column in shown:
        table.add_column(column.heading.replace(" ", "\n"), justify="right")
    if pairs:
        table.add_column(f"against\n{pairs[0].reference}", justify="right")
    for result in found:
        cells = [result.text(column.key, column.form, column.scale) for column in shown]
        cells += [against.get(result.scheme, "–")] if pairs else []
        table.add_row(result.scheme, *cells)
    return table
