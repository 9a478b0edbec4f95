"""Robust aggregates, by identities and by slow twins."""

import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import rows
from torch import Tensor

from partavg.aggregates import AGGREGATES, GeometricMedian, Median, NormBound, Trimmed
from partavg.backends.combinations import check_aggregate
from partavg.core.aggregate import About, Aggregate, weighted_sum
from partavg.solvers import SGD, SOLVERS

ALL: dict[str, Aggregate] = {
    "median": Median(),
    "trimmed": Trimmed(0.3),
    "trimmed by fractions": Trimmed(0.21),
    "norm bound": NormBound(),
    "norm bound, absolute": NormBound(bound=0.7),
    "geometric median": GeometricMedian(),
}
M, WIDTH, STATISTICS = 7, 6, 2


def about(width: int = WIDTH, last: Tensor | None = None, share: float = 1.0) -> About:
    last = torch.zeros(width, dtype=torch.float64) if last is None else last
    return About(0, 1, 0, last, (slice(0, width),), share)


def messages(seed: int = 0, count: int = M) -> Tensor:
    return rows(count, WIDTH + STATISTICS, seed)


def equal(count: int = M) -> Tensor:
    return torch.full((count,), 1 / count, dtype=torch.float64)


def uneven(seed: int, count: int = M) -> Tensor:
    numbers = 0.1 + torch.rand(count, generator=torch.Generator().manual_seed(seed)).double()
    return numbers / numbers.sum()


def same(one: Tensor, other: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("weights", [equal(), uneven(1)])
def test_of_equal_messages_they_are_that_message(name: str, weights: Tensor) -> None:
    one = messages()[:1]
    last = one[0, :WIDTH] if "absolute" in name else None  # else it would be too far
    same(ALL[name](one.repeat(M, 1), weights, about(last=last)), one[0])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("weights", [equal(), uneven(1)])
def test_the_order_of_messages_does_not_matter(name: str, weights: Tensor) -> None:
    order = torch.tensor([3, 0, 6, 1, 2, 5, 4])
    one = ALL[name](messages(), weights, about())
    same(ALL[name](messages()[order], weights[order], about()), one)


@pytest.mark.parametrize("name", ALL)
def test_a_weight_is_as_many_messages(name: str) -> None:
    counts = torch.tensor([1, 3, 2, 1, 4, 1, 1])
    repeated = messages().repeat_interleave(counts, 0)
    weighted = ALL[name](messages(), counts / counts.sum().double(), about())
    same(weighted, ALL[name](repeated, equal(len(repeated)), about()), 1e-9)


@pytest.mark.parametrize("name", ALL)
def test_what_moves_all_moves_them(name: str) -> None:
    there = rows(1, WIDTH + STATISTICS, 5)[0]
    one = ALL[name](messages(), uneven(2), about())
    other = ALL[name](messages() + there, uneven(2), about(last=there[:WIDTH]))
    same(other, one + there, 1e-9)


@given(count=st.integers(1, 12), seed=st.integers(0, 99))
def test_the_median_is_the_textbooks(count: int, seed: int) -> None:
    found = Median()(messages(seed, count), equal(count), about())
    columns = messages(seed, count).T.tolist()
    assert found.tolist() == pytest.approx([statistics.median(column) for column in columns])


@given(count=st.integers(1, 12), share=st.floats(0, 0.49), seed=st.integers(0, 99))
def test_the_trimmed_mean_is_the_textbooks_where_whole_messages_go(
    count: int, share: float, seed: int
) -> None:
    gone = int(share * count)
    found = Trimmed(gone / count)(messages(seed, count), equal(count), about())
    kept = np.sort(messages(seed, count).numpy(), 0)[gone : count - gone]
    np.testing.assert_allclose(found.numpy(), kept.mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weights", [equal(), uneven(3)])
def test_nothing_trimmed_and_nothing_bounded_is_the_mean(weights: Tensor) -> None:
    mean = weighted_sum(messages(), weights, about())
    same(Trimmed(0.0)(messages(), weights, about()), mean)
    bounded = NormBound(bound=1e9)(messages(), weights, about())
    same(bounded[:WIDTH], mean[:WIDTH])
    same(Trimmed(0.499999)(messages(), equal(), about()), Median()(messages(), equal(), about()))


@given(seed=st.integers(0, 99), times=st.floats(0.1, 3))
def test_the_norm_bound_as_it_is_defined(seed: int, times: float) -> None:
    sent, weights, last = messages(seed), uneven(seed), rows(1, WIDTH, seed + 1)[0]
    norms = [float((row[:WIDTH] - last).norm()) for row in sent]
    half = sorted(range(M), key=lambda i: norms[i])
    total, bound = 0.0, 0.0
    for i in half:
        total += float(weights[i])
        if total >= 0.5:
            bound = times * norms[i]
            break
    expected = last.clone()
    for p, row, norm in zip(weights, sent, norms, strict=True):
        expected += p * (row[:WIDTH] - last) * min(1.0, bound / norm)
    found = NormBound(times)(sent, weights, about(last=last))
    same(found[:WIDTH], expected, 1e-9)
    same(found[WIDTH:], Median()(sent, weights, about())[WIDTH:])


def test_bounds_of_parts_add_up_to_that_of_the_model() -> None:
    """One averaging of all parts moves the model as far as one of the whole."""
    sent, last = 100 * messages()[:, :WIDTH], torch.zeros(WIDTH, dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    whole = NormBound(bound=2.0)(sent[:1], one, about(last=last))
    pieces = [
        NormBound(bound=2.0)(sent[:1, a:b], one, about(b - a, last[a:b], (b - a) / WIDTH))
        for a, b in ((0, 2), (2, 3), (3, WIDTH))
    ]
    assert float(whole.norm()) == pytest.approx(2.0)
    assert float(torch.cat(pieces).norm()) == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_geometric_median_is_nearest_to_all(seed: int) -> None:
    sent, weights = rows(M, 40, seed), uneven(seed)
    found = GeometricMedian(200)(sent, weights, about(40))

    def far(center: Tensor) -> float:
        return float(weights @ (sent - center).norm(dim=1))

    for other in range(20):
        aside = rows(1, 40, 100 + other)[0]
        assert far(found) <= far(found + 1e-4 * aside)
    assert float((GeometricMedian()(sent, weights, about(40)) - found).norm()) < 1e-2


def test_a_message_that_changes_nothing_does_not_hold_the_geometric_median() -> None:
    """Weiszfeld's algorithm would never leave it."""
    sent = 1 + 0.1 * rows(M, 40, 0)
    sent[0] = 0
    assert float(GeometricMedian()(sent, equal(), about(40)).mean()) > 0.8


LIES = {"1e30": 1e30, "-1e300": -1e300, "infinity": float("inf"), "NaN": float("nan")}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("weights", [equal(), None])
def test_fewer_than_break_it_move_it_no_farther_than_the_honest_are(
    name: str, lie: str, weights: Tensor | None
) -> None:
    """Two of seven; of unequal weight, just as much as is trimmed."""
    uneven_ = torch.tensor([0.15, 0.06, 0.2, 0.2, 0.14, 0.15, 0.1], dtype=torch.float64)
    weights = uneven_ if weights is None else weights
    sent = messages()
    sent[:2] = LIES[lie]
    found = ALL["trimmed" if "fractions" in name else name](sent, weights, about())
    assert bool(found.isfinite().all())
    highest, lowest = sent[2:].amax(0).clamp(min=0), sent[2:].amin(0).clamp(max=0)
    assert bool(((found <= highest) & (found >= lowest)).all())


@pytest.mark.parametrize("name", ["median", "trimmed", "norm bound", "geometric median"])
def test_more_than_half_can_move_it_anywhere(name: str) -> None:
    sent = messages()
    sent[:4] = 1e6
    assert float(ALL[name](sent, equal(), about())[:WIDTH].mean()) > 1e5


def test_less_is_trimmed_than_attackers_weigh_and_it_breaks() -> None:
    sent = messages()
    sent[:2] = 1e30
    assert float(Trimmed(0.2)(sent, equal(), about()).max()) > 1e25


@pytest.mark.parametrize("count", range(1, 65))
def test_rounding_lets_nothing_of_what_is_trimmed_through(count: int) -> None:
    """A share of 0.2 of 15 is 3 and a bit, in binary."""
    sent = torch.zeros(count, 3)
    gone = int(0.2 * count + 1e-9)
    sent[:gone] = 1e30
    for weights in (torch.full((count,), 1 / count), torch.ones(count) + 1e-7 * torch.rand(count)):
        share = gone / count + (1e-8 if gone else 0)
        assert Trimmed(share)(sent, weights / weights.sum(), about(3)).abs().max() == 0


def test_float32_on_the_way_is_enough() -> None:
    for aggregate in ALL.values():
        exact = aggregate(messages(), uneven(1), about())
        last = torch.zeros(WIDTH)
        near = aggregate(messages().float(), uneven(1).float(), about(last=last))
        assert near.dtype == torch.float32
        torch.testing.assert_close(near.double(), exact, rtol=1e-4, atol=1e-5)


def test_messages_that_are_no_numbers_change_nothing_where_there_are_no_others() -> None:
    sent, last = torch.full((M, WIDTH), float("nan")).double(), rows(1, WIDTH, 3)[0]
    for aggregate in (NormBound(), GeometricMedian()):
        same(aggregate(sent, equal(), about(last=last)), last)


def test_all_messages_at_the_place_where_all_were() -> None:
    still = torch.zeros(M, WIDTH, dtype=torch.float64)
    for aggregate in ALL.values():
        assert torch.equal(aggregate(still, equal(), about()), still[0])


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Trimmed(0.5), "share 0.5 is what is left out at each end: use 0 to below 0.5"),
        (lambda: Trimmed(-0.1), "share -0.1 is what is left out"),
        (lambda: Trimmed("a"), "share 'a' is no number"),
        (lambda: NormBound(0), "times 0 would let nobody change anything"),
        (lambda: NormBound(bound=-1), "bound -1 would let nobody"),
        (lambda: GeometricMedian(10**9), "1000000000 rounds take too long: use up to 1000"),
        (lambda: GeometricMedian(0), "rounds 0 is no whole number from 1"),
    ],
)
def test_what_makes_no_sense_is_said(make, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


REFUSED = {"fednova", "scaffold", "vrl_sgd"}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", AGGREGATES)
def test_they_are_for_solvers_that_send_parameters(name: str, solver: str) -> None:
    made = AGGREGATES[name]
    aggregate = made() if isinstance(made, type) else made
    if name == "mean" or solver not in REFUSED:
        return check_aggregate(aggregate, SOLVERS[solver]())
    with pytest.raises(ValueError, match=r"corrects gradients by .* use a solver like sgd"):
        check_aggregate(aggregate, SOLVERS[solver]())
    return None


def test_momentum_that_is_sent_along_is_refused() -> None:
    with pytest.raises(ValueError, match="SGD sends more than its parameters"):
        check_aggregate(Median(), SGD(0.9, momentum_at_averaging="averaged"))
