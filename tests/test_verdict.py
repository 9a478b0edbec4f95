"""The sentence that a comparison ends with claims no more than its seeds tell."""

from math import sqrt
from statistics import mean, stdev

import pytest

from partavg.comparison import Result
from partavg.metrics.metric import Metric
from partavg.pairs import compared, how
from partavg.report.pareto import named
from partavg.verdict import verdict


def result(scheme: str, *accuracies: float, peak: float = 4.0, seeds: tuple = ()) -> Result:
    usual = {"scale": 1.0, "bytes": 100, "peak_discrepancy": peak}
    return Result(scheme, tuple({"accuracy": one, **usual} for one in accuracies), seeds)


def test_one_seed_is_said_to_be_one() -> None:
    periodic = result("periodic", 0.80)
    assert verdict([periodic, result("partial", 0.79, peak=6.0)]) == (
        "At the same traffic, partial averaging ended 1.00 points of accuracy below periodic "
        "averaging (79.00 % against 80.00 %; one seed: not evidence); the peak discrepancy "
        "between the models was 1.50 times that of periodic."
    )
    assert verdict([result("synchronous", 0.9), result("partial", 0.8)]) == (
        "synchronous ended with the highest accuracy: 90.00 % (one seed: not evidence)."
    )
    assert (
        verdict([result("partial", 0.8)]) == "partial ended with the accuracy 80.00 % (one seed)."
    )


def test_equal_accuracies_have_no_winner() -> None:
    level = verdict([result("periodic", 0.094), result("partial", 0.094)])
    assert (
        "ended level with periodic averaging in accuracy, at 9.40 % (one seed: not evidence)"
        in level
    )
    assert verdict([result("synchronous", 0.094), result("partial", 0.094001)]) == (
        "partial and synchronous ended level with the highest accuracy: 9.40 % "
        "(one seed: not evidence)."
    )
    several = [result(name, 0.8, 0.9) for name in ("synchronous", "a", "b")]
    assert verdict(several) == (
        "synchronous, a and b ended level with the highest accuracy: 85.00 % "
        "(two seeds: no interval)."
    )


def test_a_difference_within_the_spread_of_the_seeds_is_a_tie() -> None:
    ours, theirs = (0.83, 0.83, 0.80), (0.80, 0.82, 0.81)
    said = verdict([result("periodic", *theirs), result("partial", *ours, peak=1.0)])
    apart = [100 * (one - other) for one, other in zip(ours, theirs, strict=True)]
    reach = 4.303 * stdev(apart) / sqrt(3)
    assert said == (
        "At the same traffic, partial averaging ended in a tie with periodic "
        "averaging: 1.00 points of accuracy above it (82.00 % against 81.00 %; 95 % interval of "
        f"the difference −{reach - mean(apart):.2f} to {mean(apart) + reach:.2f}), no "
        "difference that 3 seeds can tell; the peak discrepancy between the models "
        "was 0.25 times that of periodic."
    )
    said = verdict([result("synchronous", *ours), result("4-parts", *theirs)])
    assert said.startswith(
        "synchronous ended with the highest mean accuracy, 82.00 %, in a tie with 4-parts: no "
        "difference that 3 seeds can tell (95 % interval of the difference −3.97 to 5.97)."
    )


def test_a_difference_that_seeds_agree_on_is_told() -> None:
    """Seeds differ by ten points, and in each of them partial averaging is ahead by about one."""
    ours, theirs = (0.811, 0.709, 0.912), (0.80, 0.70, 0.90)
    said = verdict([result("periodic", *theirs), result("partial", *ours)])
    assert (
        "ended 1.07 points of accuracy above periodic averaging (81.07 % against 80.00 %; " in said
    )
    assert "95 % interval of the difference 0.69 to 1.45, 3 seeds)" in said
    said = verdict([result("synchronous", *ours), result("4-parts", *theirs)])
    assert said == (
        "synchronous ended with the highest accuracy: 81.07 %, ahead of 4-parts (95 % interval of "
        "the difference 0.69 to 1.45, 3 seeds)."
    )


def test_only_seeds_that_both_have_are_compared() -> None:
    periodic = result("periodic", 0.1, 0.80, 0.81, seeds=(7, 0, 1))
    partial = result("partial", 0.83, 0.82, 0.9, seeds=(1, 0, 9))
    said = verdict([periodic, partial])
    assert "(82.50 % against 80.50 %; two seeds: no interval)" in said
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


def test_others_are_counted_after_holms_correction() -> None:
    found = [
        result("periodic", 0.80, 0.70, 0.90),
        result("partial", 0.811, 0.709, 0.912),
        result("4-parts", 0.79, 0.72, 0.90),
        result("synchronous", 0.60, 0.501, 0.699),
    ]
    said = verdict(found)
    assert said.endswith(
        "that of periodic. Of 3 schemes against periodic, by Holm: 1 ahead (partial), 1 behind "
        "(synchronous), 1 tied with it (4-parts)."
    )
    said = verdict(found[1:])
    assert said.startswith("partial ended with the highest mean accuracy, 81.07 %, in a tie with")
    assert said.endswith("Of 2 schemes against partial, by Holm: 1 behind (synchronous), 1 tied "
                         "with it (4-parts).")  # fmt: skip


def test_an_interval_beside_zero_is_a_tie_where_holm_says_so() -> None:
    base = (0.80, 0.70, 0.90)
    near = tuple(one + gap for one, gap in zip(base, (0.010, 0.012, 0.017), strict=True))
    alone = verdict([result("periodic", *base), result("partial", *near)])
    assert "ended 1.30 points of accuracy above periodic averaging (" in alone
    crowd = [result(f"other{k}", 0.8, 0.71 + 0.01 * k, 0.88) for k in range(3)]
    said = verdict([result("periodic", *base), result("partial", *near), *crowd])
    assert "ended in a tie with periodic averaging: 1.30 points of accuracy above it (" in said
    assert "no difference that 3 seeds can tell (p = 0.099 by Holm)" in said


def test_a_scheme_that_is_not_partial_is_compared_with_periodic_too() -> None:
    said = verdict([result("periodic", 0.7, 0.8, 0.9), result("synchronous", 0.8, 0.9, 1.0)])
    assert said.startswith("At the same traffic, synchronous ended 10.00 points of accuracy above")


def test_validation_and_test_are_not_mixed() -> None:
    periodic, partial = result("periodic", 0.8), result("partial", 0.9)
    held = Result("partial", ({**partial.summaries[0], "judged_on": "validation"},))
    assert verdict([periodic, held]) == (
        "Some of these runs were judged on validation samples held out of the training set and "
        "others on the test set: they cannot be compared."
    )
    both = [held, Result("periodic", ({**periodic.summaries[0], "judged_on": "validation"},))]
    assert verdict(both).startswith(
        "Judged on validation samples held out of the training set. At the same traffic, partial"
    )


@pytest.mark.parametrize(
    ("title", "column", "within", "first"),
    [
        ("AUC", "", "AUC", "AUC"),
        ("", "AUC %", "AUC", "AUC"),
        ("Mean IoU", "mIoU", "mean IoU", "Mean IoU"),
        ("F1, {average}", "", "F1, {average}", "F1, {average}"),
        ("", "", "auc", "Auc"),
    ],
)
def test_metrics_keep_their_capitals(title: str, column: str, within: str, first: str) -> None:
    metric = Metric("auc", title=title, column=column, better="higher", form=".3f")
    found = [
        Result(name, ({"auc": value, "bytes": 100},), metrics=(metric,))
        for name, value in (("periodic", 0.8), ("partial", 0.9))
    ]
    assert f"ended 0.100 of {within} above periodic averaging" in verdict(found)
    assert how(compared(found, metric)).startswith(f"Against periodic by {within}:")
    assert named(metric) == first
