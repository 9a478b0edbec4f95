"""Tables in terminals of any width: nothing is cut off."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from partavg.cli.comparison_table import comparison_table
from partavg.cli.fitted import Fitted
from partavg.comparison import Result

WIDTHS = (40, 60, 80, 100, 120, 200)
NAMES = ("periodic", "partial", "synchronous", "4-parts")


def printed(table: Fitted, width: int) -> list[str]:
    text = StringIO()
    Console(file=text, width=width, force_terminal=False).print(table)
    lines = text.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    return lines


def compared(seeds: int, schemes: int) -> Fitted:
    """A comparison with numbers as long as they come."""

    def summary(place: int, seed: int) -> dict[str, float]:
        return {
            "accuracy": 0.5 + 0.011 * place + 0.07 * ((seed * 7 + place * 3) % 5),
            "loss": 0.123 + seed,
            "bytes": 1.3e6 * 10**place,
            "messages": 100_000,
            "seconds": 5000.5 + seed,
        }

    return comparison_table([
        Result(name, tuple(summary(place, seed) for seed in range(seeds)), tuple(range(seeds)))
        for place, name in enumerate(NAMES[:schemes])
    ])  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
@pytest.mark.parametrize("schemes", [2, 4])
def test_nothing_of_a_comparison_is_cut_off(width: int, seeds: int, schemes: int) -> None:
    table = compared(seeds, schemes)
    lines = printed(table, width)
    assert "…" not in "".join(lines)
    if width < 60:
        return
    for row in table.rows:
        for cell in row:
            assert any(cell in line for line in lines), cell


def test_what_is_compared_has_a_column() -> None:
    """Accuracy where there is one, and the test loss where there is none."""
    known = {"test_loss": 0.1234, "train_loss": 0.2}
    seeds = [{**known, "test_loss": 0.1 * seed} for seed in (1, 2, 3)]
    loss = comparison_table([Result("periodic", tuple(seeds)), Result("partial", tuple(seeds))])
    assert list(loss.head[1:3]) == ["test loss", "against periodic"]
    seeds = [{**one, "accuracy": 0.5} for one in seeds]
    both = comparison_table([Result("periodic", tuple(seeds)), Result("partial", tuple(seeds))])
    assert list(both.head[1:3]) == ["accuracy %", "against periodic"]
    assert "test loss" not in both.head


def test_intervals_stand_beside_what_they_are_of() -> None:
    head = compared(3, 2).head
    assert list(head[1:3]) == ["accuracy %", "against periodic"]
    assert any("[" in line and "]" in line for line in printed(compared(3, 2), 80))


def test_every_table_begins_with_the_names() -> None:
    lines = printed(compared(5, 4), 60)
    tables = sum(line.split()[:1] == ["scheme"] for line in lines)
    assert tables > 1
    for name in NAMES:
        assert sum(line.split()[:1] == [name] for line in lines) == tables


CELLS = st.text(
    st.characters(codec="ascii", exclude_categories=["C", "Z"]), min_size=1, max_size=70
)


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=3),
       st.integers(20, 100))  # fmt: skip
def test_whatever_stands_in_cells_is_printed(rows: list[list[str]], width: int) -> None:
    """Every letter, markup of rich included; what is wider than the screen is folded."""
    found = sorted(
        "".join(printed(Fitted(["a", "b", "c"], rows), width)).replace("─", "").replace(" ", "")
    )
    for letter in set("".join(map("".join, rows))):
        assert found.count(letter) >= sum(cell.count(letter) for row in rows for cell in row)
