"""The table that a comparison ends with."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from partavg.comparison import CLIENTS, NOTE, Result, caveat
from partavg.metrics.table import columns


def comparison_table(found: Sequence[Result]) -> Table:
    """The results of a comparison, a line per scheme."""
    said = caveat([summary for result in found for summary in result.summaries])
    every = columns(
        (summary for result in found for summary in result.summaries),
        (metric for result in found for metric in result.metrics),
    )
    shown = [column for column in every if any(result.values(column.key) for result in found)]
    clients = any(column.key.startswith("clients_") for column in shown)
    notes = [NOTE, *([CLIENTS] if clients else []), *([f"{said.capitalize()}."] if said else [])]
    table = Table(box=box.SIMPLE_HEAD, caption=" ".join(notes), caption_justify="left")
    table.add_column("scheme", no_wrap=True)
    for column in shown:
        table.add_column(column.heading.replace(" ", "\n"), justify="right")
    for result in found:
        cells = (result.text(column.key, column.form, column.scale) for column in shown)
        table.add_row(result.scheme, *cells)
    return table
