"""Schemes against a reference: intervals, Holm's correction, and too few seeds."""

from itertools import permutations

import pytest

from partavg.comparison import Result
from partavg.metrics.table import METRICS
from partavg.pairs import Difference, compared, holm, how

ACCURACY, LOSS = METRICS["accuracy"], METRICS["train_loss"]


def result(scheme: str, *values: float, key: str = "accuracy", **more: object) -> Result:
    return Result(scheme, tuple({key: value, **more} for value in values))


PERIODIC = result("periodic", 0.80, 0.70, 0.90)
FOUND = [
    result("partial", 0.811, 0.709, 0.912),
    PERIODIC,
    result("4-parts", 0.79, 0.72, 0.90),
    result("synchronous", 0.60, 0.501, 0.699),
]


def test_pairs_by_hand() -> None:
    """Differences 1.1, 0.9, 1.2: mean 1.0667, deviation 0.1528, t = 12.09 of 2 degrees."""
    found = Difference.of(FOUND[0], PERIODIC, ACCURACY)
    assert found.interval == pytest.approx((0.6872, 1.4461), abs=1e-4)
    assert found.p == pytest.approx(0.00677, abs=1e-5)
    assert found.cell == "+1.07 [+0.69, +1.45]"


def test_the_usual_comparison() -> None:
    found = compared(FOUND, ACCURACY)
    assert [one.scheme for one in found] == ["partial", "4-parts", "synchronous"]
    assert [one.outcome for one in found] == ["ahead", "tie", "behind"]
    assert {one.reference for one in found} == {"periodic"}
    assert [one.adjusted for one in found] == holm([one.p for one in found])
    assert found[1].cell.endswith("] tie")
    assert how(found) == (
        "Against periodic by accuracy: paired by seed (3 seeds), 95 % intervals, each for itself; "
        "tie: no difference that the seeds can tell, p ≥ 0.05 by Holm over 3 comparisons."
    )


def test_without_periodic_the_best_is_the_reference() -> None:
    found = compared([FOUND[2], FOUND[0], FOUND[3]], ACCURACY)
    assert [one.reference for one in found] == ["partial"] * 2
    assert [one.outcome for one in found] == ["tie", "behind"]


def test_lower_losses_are_ahead() -> None:
    ours, theirs = result("a", 0.1, 0.21, 0.3, key="train_loss"), (1.1, 1.2, 1.3)
    (found,) = compared([ours, result("periodic", *theirs, key="train_loss")], LOSS)
    assert found.outcome == "ahead"
    assert found.cell.startswith("−0.997 [−1.0")
    found = compared([ours, result("b", *theirs, key="train_loss")], LOSS)
    assert [(one.scheme, one.reference, one.outcome) for one in found] == [("b", "a", "behind")]


@pytest.mark.parametrize(
    ("seeds", "outcome", "said"),
    [(1, "one seed", "one seed: not evidence"), (2, "two seeds", "two seeds: no interval")],
)
def test_few_seeds_are_not_evidence(seeds: int, outcome: str, said: str) -> None:
    ours, theirs = (0.9, 0.8)[:seeds], (0.7, 0.6)[:seeds]
    (found,) = compared([result("periodic", *theirs), result("partial", *ours)], ACCURACY)
    assert (found.outcome, found.interval, found.p, found.adjusted) == (outcome, None, None, None)
    assert found.cell == f"+20.00 {outcome}"
    assert how([found]) == f"Against periodic by accuracy: {said}."


def test_only_those_with_enough_seeds_are_counted_by_holm() -> None:
    found = compared([PERIODIC, FOUND[0], result("late", 0.99)], ACCURACY)
    assert [one.outcome for one in found] == ["ahead", "one seed"]
    assert found[0].adjusted == found[0].p
    assert "Holm over 1 comparison; one seed: not evidence." in how(found)


def test_no_seed_in_common() -> None:
    other = Result("partial", ({"accuracy": 0.9},), (9,))
    (found,) = compared([PERIODIC, other], ACCURACY)
    assert (found.outcome, found.cell) == ("not compared", "–")
    assert how([found]) == "Against periodic by accuracy: no seed in common."


def test_equal_values_and_constant_differences() -> None:
    same = compared([PERIODIC, result("partial", 0.80, 0.70, 0.90)], ACCURACY)[0]
    assert (same.outcome, same.p, same.difference.cell) == ("tie", 1.0, "+0.00 [+0.00, +0.00]")
    constant = compared([PERIODIC, result("partial", 0.81, 0.71, 0.91)], ACCURACY)[0]
    assert (constant.outcome, constant.p) == ("ahead", 0.0)


def test_a_difference_has_the_decimals_of_its_interval() -> None:
    """Alone, or where all of a cell are as small, it reads as it is: nothing else would be seen."""
    level, small = (0.8037, 0.6963, 0.89991), (0.80001, 0.700015, 0.899995)
    assert Difference.of(result("a", *level), PERIODIC, ACCURACY).cell == "−0.00 [−0.92, +0.92]"
    cell = Difference.of(result("a", *small), PERIODIC, ACCURACY).cell
    assert cell == "+0.00067 [−0.0019, +0.0033]"
    assert Difference.of(result("a", 0.80001), PERIODIC, ACCURACY).cell == "+0.001"


def test_what_is_no_number_is_not_compared() -> None:
    found = compared([PERIODIC, result("partial", 0.8, float("nan"), 0.9)], ACCURACY)[0]
    assert (found.outcome, found.interval) == ("not compared", None)


def test_validation_and_test_are_not_mixed() -> None:
    held = result("partial", 0.9, 0.9, 0.9, judged_on="validation")
    assert compared([PERIODIC, held], ACCURACY) == []


def test_holm_is_the_closed_test() -> None:
    """Rejected at a level are those whose every set of hypotheses Bonferroni rejects."""
    for values in permutations((0.004, 0.012, 0.03, 0.4)):
        for p, adjusted in zip(values, holm(values), strict=True):
            others = sorted(value for value in values if value < p)
            sets = [  # the worst set with p: those above it, and some below
                (len(values) - place) * value for place, value in enumerate([*others, p])
            ]
            assert adjusted == pytest.approx(min(1, max(sets)))
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
