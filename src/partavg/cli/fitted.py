"""Tables of which nothing is cut off: where lines are too short, columns go on below."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Fitted:
    """Rows of text below headings, between a title and notes."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1
    """How many columns say what a row is: every table begins with them."""
    words: Sequence[str] = ()
    """Headings of other columns that are no numbers."""
    title: str = ""
    notes: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many columns beside each other as there is room for, the others in tables below."""
        if self.title:
            yield Text(self.title, style="italic")
        for places in self._panels(console, options.max_width):
            # What is too wide even alone is folded, in the middle of a word if it must be.
            yield self._table(places, folded=self._width(places, console) > options.max_width)
        if self.notes:
            yield Text(self.notes, style="dim")

    def _panels(self, console: Console, width: int) -> Iterator[list[int]]:
        """The columns of each table: the names, and as many others as fit."""
        names = list(range(self.names))
        panel = names
        for place in range(self.names, len(self.head)):
            if panel != names and self._width([*panel, place], console) > width:
                yield panel
                panel = names
            panel = [*panel, place]
        yield panel

    def _width(self, places: Sequence[int], console: Console) -> int:
        unbounded = console.options.update(width=10_000)
        return console.measure(self._table(places), options=unbounded).maximum

    def _table(self, places: Sequence[int], *, folded: bool = False) -> Table:
        table = Table(box=box.SIMPLE_HEAD)
        for place in places:
            heading = self.head[place]
            is_text = place < self.names or heading in self.words
            table.add_column(
                Text(heading if is_text else heading.replace(" ", "\n")),
                justify="left" if is_text else "right",
                no_wrap=not folded,
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*(Text(row[place]) for place in places))
        return table
