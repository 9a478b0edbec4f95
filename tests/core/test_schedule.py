import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import schedules

from partavg.core.schedule import Schedule


@given(schedules(), st.integers(0, 50))
def test_every_part_is_due_once_in_any_interval(schedule: Schedule, start: int) -> None:
    steps = range(start + 1, start + 1 + schedule.interval)
    due = [part for step in steps for part in schedule(step)]
    assert sorted(due) == list(range(schedule.parts))


@given(st.integers(1, 64), st.integers(1, 500))
def test_partial_averaging_takes_part_k_mod_tau(tau: int, k: int) -> None:
    assert Schedule.partial(tau)(k) == (k % tau,)


@given(st.integers(1, 64), st.integers(1, 500))
def test_periodic_averaging_takes_all_when_k_mod_tau_is_0(tau: int, k: int) -> None:
    assert Schedule.periodic(tau)(k) == ((0,) if k % tau == 0 else ())


def test_synchronous_averaging_takes_all_after_every_step() -> None:
    assert all(Schedule.synchronous()(k) == (0,) for k in range(1, 9))


@pytest.mark.parametrize(
    ("interval", "parts", "sentence"),
    [
        (
            10,
            4,
            "interval 10 cannot be cut into 4 parts: parts must divide the interval; "
            "use 1, 2, 5 or 10, or offsets that say when each is due",
        ),
        (1, 0, "interval 1 cannot be cut into 0 parts: parts must divide the interval; use 1"),
        (0, 1, "interval 0 is below 1: use 1 for synchronous SGD"),
    ],
)
def test_impossible_schedules_are_refused(interval: int, parts: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Schedule(interval, parts)


@given(st.integers(1, 12), st.integers(0, 5), st.integers(0, 30))
def test_shuffled_cycles_take_every_part_once(parts: int, seed: int, start: int) -> None:
    schedule = Schedule(2 * parts, parts, shuffle=seed, start=start)
    orders = []
    for cycle in range(4):
        first = start + cycle * schedule.interval + 1
        due = [schedule(step) for step in range(first, first + schedule.interval)]
        assert sorted(part for each in due for part in each) == list(range(parts))
        orders.append(due)
        assert schedule.cycle_ends(first + schedule.interval - 1)
        assert not any(schedule.cycle_ends(s) for s in range(first, first + schedule.interval - 1))
    if parts > 5:
        assert any(order != orders[0] for order in orders)


def test_counting_begins_at_the_start() -> None:
    assert [Schedule(3, 3, start=10)(step) for step in (11, 12, 13, 14)] == [(1,), (2,), (0,), (1,)]


def test_multiples_leave_cycles_out() -> None:
    schedule = Schedule(2, 2, multiples=(1, 3))
    due = [schedule(step) for step in range(1, 13)]
    assert due == [(), (0,), (), (0,), (1,), (0,), (), (0,), (), (0,), (1,), (0,)]


@given(st.integers(1, 12), st.lists(st.integers(0, 12), min_size=1, max_size=15), st.integers(0, 9))
def test_offsets_say_when_each_part_is_due(interval: int, drawn: list[int], start: int) -> None:
    offsets = tuple(min(offset, interval) for offset in drawn)
    schedule = Schedule(interval, start=start, offsets=offsets)
    assert schedule.parts == len(offsets)
    for step in range(start + 1, start + 3 * interval + 1):
        gone = step - start
        assert schedule(step) == tuple(
            part for part, offset in enumerate(offsets) if (gone - offset) % interval == 0
        )
    assert schedule.cycle_ends(start + interval)


@given(st.integers(1, 40), st.integers(1, 50))
def test_streamed_parts_are_due_once_and_evenly(interval: int, parts: int) -> None:
    schedule = Schedule.streaming(interval, parts)
    due = [schedule(step) for step in range(1, interval + 1)]
    assert [part for step in due for part in step] == list(range(parts))
    sizes = {len(step) for step in due}
    assert max(sizes) - min(sizes) <= 1
    if interval % parts == 0:
        even = Schedule(interval, parts)
        assert [bool(step) for step in due] == [bool(even(k)) for k in range(1, interval + 1)]


def test_offsets_and_multiples_go_together() -> None:
    schedule = Schedule(2, multiples=(1, 2), offsets=(1, 1))
    assert [schedule(step) for step in range(1, 7)] == [(0,), (), (0, 1), (), (0,), ()]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"offsets": (0, 5)}, "offset 5 is no step of an interval of 4: use 0 to 4"),
        ({"offsets": (-1,)}, "offset -1 is no step of an interval of 4: use 0 to 4"),
        ({"offsets": (0, 1), "parts": 3}, "2 offsets for 3 parts: give one for each part"),
        ({"offsets": (0, 1), "shuffle": 1}, "a schedule that is shuffled draws when each part is"),
    ],
)
def test_offsets_that_make_no_sense_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        Schedule(4, **options)
