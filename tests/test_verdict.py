"""The sentence that a comparison ends with claims no more than its seeds tell."""

from math import sqrt
from statistics import mean, stdev

import pytest

from partavg.comparison import Result
from partavg.verdict import verdict


def result(scheme: str, *accuracies: float, peak: float = 4.0, seeds: tuple = ()) -> Result:
    usual = {"scale": 1.0, "bytes": 100, "peak_discrepancy": peak}
    return Result(scheme, tuple({"accuracy": one, **usual} for one in accuracies), seeds)


def test_one_seed_is_said_to_be_one() -> None:
    periodic = result("periodic", 0.80)
    assert verdict([periodic, result("partial", 0.79, peak=6.0)]) == (
        "At the same traffic, partial averaging ended 1.00 points of accuracy below periodic "
        "averaging (79.00 % against 80.00 %) in one seed, which does not tell how much seeds "
        "differ; the peak discrepancy between the models was 1.50 times that of periodic."
    )
    assert verdict([result("synchronous", 0.9), result("partial", 0.8)]) == (
        "synchronous ended with the highest accuracy: 90.00 %, in one seed, which does not tell "
        "how much seeds differ."
    )
    assert (
        verdict([result("partial", 0.8)]) == "partial ended with the accuracy 80.00 % (one seed)."
    )


def test_equal_accuracies_have_no_winner() -> None:
    level = verdict([result("periodic", 0.094), result("partial", 0.094)])
    assert "ended level with periodic averaging in accuracy, at 9.40 % in one seed" in level
    assert verdict([result("synchronous", 0.094), result("partial", 0.094001)]) == (
        "partial and synchronous ended level with the highest accuracy: 9.40 % (one seed)."
    )
    several = [result(name, 0.8, 0.9) for name in ("synchronous", "a", "b")]
    assert verdict(several) == (
        "synchronous, a and b ended level with the highest accuracy: 85.00 % (2 seeds)."
    )


def test_a_difference_within_the_spread_of_the_seeds_is_noise() -> None:
    ours, theirs = (0.83, 0.83, 0.80), (0.80, 0.82, 0.81)
    said = verdict([result("periodic", *theirs), result("partial", *ours, peak=1.0)])
    apart = [100 * (one - other) for one, other in zip(ours, theirs, strict=True)]
    reach = 4.303 * stdev(apart) / sqrt(3)
    assert said == (
        "At the same traffic, partial averaging ended within the noise of 3 seeds of periodic "
        "averaging: 1.00 points of accuracy above it (82.00 % against 81.00 %; 95 % interval of "
        f"the difference −{reach - mean(apart):.2f} to {mean(apart) + reach:.2f}); the peak "
        "discrepancy between the models was 0.25 times that of periodic."
    )
    said = verdict([result("synchronous", *ours), result("4-parts", *theirs)])
    assert "synchronous ended with the highest mean accuracy, 82.00 %, but its lead" in said
    assert "over 4-parts is within the noise of 3 seeds (95 % interval" in said


def test_a_difference_that_seeds_agree_on_is_told() -> None:
    """Seeds differ by ten points, and in each of them partial averaging is ahead by about one."""
    ours, theirs = (0.811, 0.709, 0.912), (0.80, 0.70, 0.90)
    said = verdict([result("periodic", *theirs), result("partial", *ours)])
    assert (
        "ended 1.07 points of accuracy above periodic averaging (81.07 % against 80.00 %; " in said
    )
    assert "95 % interval of the difference 0.69 to 1.45, 3 seeds)" in said
    said = verdict([result("synchronous", *ours), result("4-parts", *theirs)])
    assert said.startswith("synchronous ended with the highest accuracy: 81.07 %, ahead of 4-parts")


def test_only_seeds_that_both_have_are_compared() -> None:
    periodic = result("periodic", 0.1, 0.80, 0.81, seeds=(7, 0, 1))
    partial = result("partial", 0.83, 0.82, 0.9, seeds=(1, 0, 9))
    said = verdict([periodic, partial])
    assert (
        "(82.50 % against 80.50 %; 95 % interval of the difference 2.00 to 2.00, 2 seeds)" in said
    )
    alone = verdict([result("periodic", 0.8, seeds=(0,)), result("partial", 0.9, seeds=(1,))])
    assert alone == "Partial and periodic averaging have no seed in common, and cannot be compared."


@pytest.mark.parametrize("key", ["test_loss", "train_loss"])
def test_runs_without_accuracy_are_compared_by_their_loss(key: str) -> None:
    def measured(scheme: str, loss: float) -> Result:
        return Result(scheme, ({key: loss, "steps": 3},))

    name = {"test_loss": "test loss", "train_loss": "training loss"}[key]
    said = verdict([measured("periodic", 0.5), measured("partial", 0.25)])
    assert f" of {name} below periodic averaging (0.25" in said
    assert said.startswith("Where traffic was not counted, partial")
    said = verdict([measured("a", 0.5), measured("b", 0.25)])
    assert said.startswith(f"b ended with the lowest {name}: 0.25")


def test_what_was_not_measured_is_not_compared() -> None:
    nothing = [Result("periodic", ({"steps": 3},)), Result("partial", ({"steps": 3},))]
    assert verdict(nothing) == (
        "There is no result that all runs have, so that they cannot be compared."
    )


def test_a_peak_of_zero_is_no_division() -> None:
    """One worker has no discrepancy under any scheme."""
    text = verdict([result("periodic", 0.8, peak=0.0), result("partial", 0.8, peak=0.0)])
    assert "no discrepancy" in text


def test_a_discrepancy_that_was_not_really_measured_is_said_so() -> None:
    text = verdict([result("periodic", 0.8, peak=1e-9), result("partial", 0.8, peak=1.0)])
    assert "measured right after averaging only" in text
    assert "times that of periodic" not in text
