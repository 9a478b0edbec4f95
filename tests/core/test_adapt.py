from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partavg.core.adapt import ADAPTS, AdaComm, FedLAMA, PostLocal, _least, recut
from partavg.core.schedule import Schedule

ONE = Fraction(1)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30))
def test_a_recut_schedule_is_of_the_same_kind(interval: int, parts: int, other: int) -> None:
    if interval % parts:
        parts = 1
    new = recut(Schedule(interval, parts), other, 7)
    assert (new.interval, new.start) == (other, 7)
    if parts == interval:
        assert new.parts == other
    elif parts == 1:
        assert new.parts == 1
    else:
        assert new.parts <= parts
    assert all(sum(part in new(k) for k in range(8, 8 + other)) == 1 for part in range(new.parts))


def test_post_local() -> None:
    given, policy = Schedule.partial(5), PostLocal(until=3)
    now = policy.first(given)
    assert (now.interval, now.parts) == (1, 1)
    assert policy.next({}, 2, now, given, 0.1) == now
    after = policy.next({}, 3, now, given, 0.1)
    assert after == Schedule(5, 5, start=3)
    assert policy.next({}, 8, after, given, 0.1) == after


@pytest.mark.parametrize(
    ("loss", "lr", "expected"),
    [
        (0.25, 1.0, 8),  # 16 √¼
        (0.06, 1.0, 4),  # 16 √0.06 = 3.92
        (0.9, 1.0, 8),  # 16 √0.9 = 15.2, rounded up 16, does not shrink: half
        (0.25, 0.25, 16),  # a lower rate asks for 16 √(4 · ¼)
        (0.25, 0.1, 26),  # 16 √(10 · ¼) = 25.3: longer than before, as in the paper
        (0.25, 0.0, 16),  # no rate at all says nothing
    ],
)
def test_adacomm(loss: float, lr: float, expected: int) -> None:
    given, policy = Schedule.periodic(16), AdaComm(block=30)
    notes: dict = {}
    policy.see(notes, torch.tensor(1.0), 1.0)
    for _ in range(15):
        policy.see(notes, torch.tensor(loss), 1.0)
    mean = (1.0 + 15 * loss) / 16
    assert policy.next(notes, 16, given, given, lr) == given, "the block is not over"
    for _ in range(16):
        policy.see(notes, torch.tensor(loss), 1.0)
    after = policy.next(notes, 32, given, given, lr)
    assert after == (given if expected == 16 else Schedule(expected, 1, start=32))
    assert mean > loss, "losses of the first cycle are forgotten"


def test_adacomm_waits_for_the_end_of_a_warm_up() -> None:
    given, policy, notes = Schedule.partial(4), AdaComm(block=1), {}
    for lr in (0.1, 0.2, 0.3, 0.4):
        policy.see(notes, torch.tensor(0.5), lr)
    assert policy.next(notes, 4, given, given, 0.5) == given
    for _ in range(4):
        policy.see(notes, torch.tensor(0.5), 0.5)
    assert policy.next(notes, 8, given, given, 0.5).interval == 2, "full rate: η₀/η is 1"


def test_adacomm_lengthens_once_after_a_decay_and_halves_again_at_the_new_rate() -> None:
    given, policy, notes = Schedule.periodic(4), AdaComm(block=1), {}
    now, step, seen = given, 0, []
    for loss, lr, following in [(1.0, 1.0, 1.0), (0.5, 1.0, 0.1), (0.5, 0.1, 0.1)]:
        for _ in range(now.interval):
            policy.see(notes, torch.tensor(loss), lr)
            step += 1
        now = policy.next(notes, step, now, given, following)
        seen.append(now.interval)
    assert seen == [2, 9, 4], "half of 4; 4 √(10 · ½) = 8.9; half of 9"


def test_adacomm_ends_with_synchronous_averaging() -> None:
    given, policy, notes = Schedule.partial(4), AdaComm(block=1), {}
    now, step = given, 0
    seen = []
    for loss in (1.0, 0.9, 0.8, 0.1, 0.1):
        for _ in range(now.interval):
            policy.see(notes, torch.tensor(loss), 0.1)
            step += 1
        now = policy.next(notes, step, now, given, 0.1)
        seen.append((now.interval, now.parts))
    assert seen == [(2, 2), (1, 1), (1, 1), (1, 1), (1, 1)]


def test_fedlama_sorts_parts_by_discrepancy_per_parameter() -> None:
    assert _least([10.0, 1.0, 10.0], [10, 100, 10]) == {0, 1}, "large and calm, and the next"
    assert _least([4.0, 3.0, 2.0, 1.0], [1, 1, 1, 1]) == {1, 2, 3}, "0.1 < ¾, 0.3 < ½, 0.6 > ¼"
    assert _least([1.0, 1.0, 1.0, 1.0], [1, 1, 1, 1]) == {0, 1}, "until the shares meet"
    assert _least([0.0, 0.0], [5, 5]) == {0, 1}, "nobody differs"
    given, policy = Schedule.partial(3), FedLAMA(phi=2)
    notes = {"apart": torch.tensor([10.0, 1.0, 10.0]), "sizes": [10, 100, 10]}
    assert policy.next(notes, 3, given, given, 0.1) == given
    after = policy.next(notes, 6, given, given, 0.1)
    assert after == Schedule(3, 3, start=6, multiples=(2, 2, 1))
    due = [part for step in range(7, 13) for part in after(step)]
    assert sorted(due) == [0, 1, 2, 2]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ADAPTS["post_local"]((), ONE), "there is none: give adapt.until"),
        (lambda: ADAPTS["adacomm"]((), ONE, block=0), "a block of 0 steps never ends"),
        (lambda: ADAPTS["fedlama"]((), ONE, phi=1), "phi 1 changes nothing"),
        (lambda: FedLAMA().first(Schedule.periodic(4)), "fedlama needs parts to tell apart"),
    ],
)
def test_what_makes_no_sense_is_refused(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
    assert ADAPTS["post_local"]((40, 60), ONE) == PostLocal(40)
    assert ADAPTS["post_local"]((), ONE / 10, until=50) == PostLocal(5), "scaled"
