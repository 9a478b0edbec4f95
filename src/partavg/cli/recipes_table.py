"""What `partavg recipes` prints: what recipes are for, and what the paper reports for its own."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from partavg.cli.fitted import Fitted
from partavg.recipes.files import about, find, paper, read

_SCHEMES = ("periodic", "partial", "synchronous")
_HOW = (
    "Accuracy in % as the paper reports it. Run one with `partavg run NAME` or `partavg compare "
    "NAME`, a table with `partavg reproduce TABLE`."
)


def recipes_tables(names: Sequence[str]) -> list[Fitted]:
    """Recipes in words, those of the paper with a column per scheme that one of them has."""
    cells = {name: _reported(name) for name in names}
    notes = {name: _note(name) for name in names}
    others = [name for name in names if not cells[name]]
    papers = [name for name in names if cells[name]]
    noted = [name for name in papers if notes[name]]
    schemes = [scheme for scheme in _SCHEMES if any(scheme in cells[name] for name in papers)]
    rows = {name: tuple(cells[name].get(scheme, "") for scheme in schemes) for name in papers}
    known = {name: (note,) for name, note in notes.items()}
    found = [
        Fitted(("recipe", "what it is"), list(_apart(others, known)), words=("what it is",)),
        Fitted(("recipe", *schemes), list(_apart(papers, rows)), notes=_HOW),
        Fitted(("recipe", "note"), [(name, notes[name]) for name in noted], words=("note",)),
    ]
    return [table for table in found if table.rows]


def _apart(names: Sequence[str], cells: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """A row per recipe, an empty one between folders."""
    for name, follower in pairwise([*names, ""]):
        yield name, *cells[name]
        if follower and name.partition("/")[0] != follower.partition("/")[0]:
            yield ("", *("" for _ in cells[name]))


def _reported(name: str) -> dict[str, str]:
    reported = paper(read(find(name)), find(name))
    if reported is None:
        return {}
    return {k: f"{mean:.2f} ± {spread:.1f}" for k, (mean, spread) in reported.reported.items()}


def _note(name: str) -> str:
    path = find(name)
    reported = paper(read(path), path)
    return about(path) if reported is None else reported.note
