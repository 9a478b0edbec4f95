import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partavg.core.pace import PACES, Drawn, Fixed


@given(st.integers(1, 12), st.data())
def test_everybody_takes_as_many_steps_as_given(interval: int, data: st.DataObject) -> None:
    counts = tuple(data.draw(st.lists(st.integers(1, interval), min_size=1, max_size=4)))
    pace = Fixed(interval, counts, clients=6)
    for cycle in range(3):
        first = cycle * interval + 1
        taken = sum(pace(step).astype(int) for step in range(first, first + interval))
        assert taken.tolist() == [counts[i % len(counts)] for i in range(6)]


def test_steps_are_spread_evenly() -> None:
    pace = Fixed(12, (3,), clients=1)
    assert [step for step in range(1, 25) if pace(step)[0]] == [4, 8, 12, 16, 20, 24]


def test_numbers_are_drawn_anew_for_every_interval() -> None:
    pace = Drawn(8, 2, 5, clients=50, seed=1)
    totals = np.array(
        [sum(pace(8 * c + k).astype(int) for k in range(1, 9)) for c in range(40)]
    )  # [cycles, clients]
    assert set(totals.flatten().tolist()) == {2, 3, 4, 5}
    assert np.bincount(totals.flatten())[2:].min() > 0.8 * totals.size / 4
    assert (totals[0] != totals[1]).any()
    assert np.array_equal(pace(3), Drawn(8, 2, 5, clients=50, seed=1)(3))


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("fixed", {}, "0 local steps in an interval of 4 cannot be: use 1 to 4"),
        ("fixed", {"counts": (2, 5)}, "5 local steps in an interval of 4"),
        ("drawn", {"least": 0, "most": 2}, "0 local steps"),
        ("drawn", {"least": 3, "most": 2}, "least 3 is above most 2"),
    ],
)
def test_impossible_paces_are_refused(name: str, options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PACES[name](4, 3, 0, **options)
