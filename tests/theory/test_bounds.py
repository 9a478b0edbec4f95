"""The theorems: by hand, by their conditions, and against what is measured on random problems."""

import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.quadratics import draw

from partavg.core.schedule import Schedule
from partavg.theory import Bound, Constants, Theorem1, Theorem2, largest_interval

ONE = Constants((2.0, 1.0), (1.0, 4.0), 3.0, (0.5, 1.0), 1.5)
THEOREMS = [Theorem1(4), Theorem2((0.5, 0.25, 0.25))]
positive = st.floats(1e-3, 1e3)


def test_by_hand() -> None:
    first = Theorem1(5).bound(ONE, lr=0.1, interval=3, steps=10)
    # 2·3/(0.1·10), (0.1/5)(2·1 + 1·4), 0.01·2·(4·1 + 1·4)
    assert first.terms == pytest.approx({"start": 6, "noise": 0.12, "drift": 0.16})
    assert (first.total, first.dominant) == (pytest.approx(6.28), "start")
    second = Theorem2((0.5, 0.5)).bound(ONE, lr=0.1, interval=3, steps=10)
    # 4·3/(0.1·10), 4·0.1·½·6, 3·0.01·2·8, 6·0.01·6·(4·½ + 1·1)
    expected = {"start": 12, "noise": 1.2, "drift": 0.48, "heterogeneity": 1.08}
    assert second.terms == pytest.approx(expected)
    # ½/√(2·3·2·(2·1.5 + 1)) = 1/(2√48); at interval 1 only 1/(2 L_max) counts
    assert second.largest_lr == pytest.approx(1 / (2 * math.sqrt(48)))
    assert Theorem2((0.5, 0.5)).largest_lr(ONE, 1) == 0.25


def test_one_interval_has_no_drift() -> None:
    for theorem in THEOREMS:
        terms = theorem.bound(ONE, lr=0.1, interval=1, steps=10).terms
        assert all(terms[name] == 0 for name in terms if name in ("drift", "heterogeneity"))


@given(positive, st.integers(1, 100))
def test_the_first_limit_is_where_the_condition_is_an_equality(L: float, tau: int) -> None:
    eta = Theorem1(3).largest_lr(Constants((L, L / 2), (1.0, 1.0), 1.0), tau)
    assert L**2 * eta**2 * tau * (tau - 1) + eta * L == pytest.approx(1)


@given(positive, st.integers(2, 100), st.floats(1, 50))
def test_the_second_limit_is_where_the_condition_is_an_equality(
    L: float, tau: int, beta: float
) -> None:
    constants = Constants((L,), (1.0,), 1.0, (1.0,), beta)
    eta = Theorem2((1.0,)).largest_lr(constants, tau)
    assert 2 * eta**2 * tau * (tau - 1) * L**2 * (2 * beta + 1) == pytest.approx(1)


@given(st.sampled_from(THEOREMS), st.floats(1e-4, 2))
def test_the_largest_interval_is_the_last_one_allowed(
    theorem: Theorem1 | Theorem2, lr: float
) -> None:
    tau = largest_interval(theorem, ONE, lr)
    assert tau == 0 or theorem.largest_lr(ONE, tau) >= lr
    assert theorem.largest_lr(ONE, tau + 1) < lr
    if tau:
        assert theorem.bound(ONE, lr=lr, interval=tau, steps=1).holds
    assert not theorem.bound(ONE, lr=lr, interval=tau + 1, steps=1).holds


def test_with_the_scaled_rate_the_bound_falls_as_the_workers_grow() -> None:
    """η = √(m/K): the first two terms are O(1/√(mK)), the third O(m/K)."""
    steps = 10**6

    def bound(workers: int) -> Bound:
        lr = math.sqrt(workers / steps)
        return Theorem1(workers).bound(ONE, lr=lr, interval=4, steps=steps)

    one, many = bound(1).terms, bound(16).terms
    assert many["start"] == pytest.approx(one["start"] / 4)
    assert many["noise"] == pytest.approx(one["noise"] / 4)
    assert many["drift"] == pytest.approx(16 * one["drift"])


KINDS = {
    "quadratic": {"alike": True},
    "bent": {"alike": True, "bent": True},
    "non-iid": {"alike": False},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("separable", [True, False])
@pytest.mark.parametrize("tau", [1, 2, 4, 8])
def test_measured_gradients_stay_under_the_bound(kind: str, separable: bool, tau: int) -> None:
    """20 random problems each, 480 in all, half at the limit and half well below it."""
    problems = draw(20, 6, tau, seed=tau, separable=separable, **KINDS[kind])
    weights = tuple(problems.weights.tolist())
    theorem = Theorem2(weights) if kind == "non-iid" else Theorem1(len(weights))
    constants = [problems.constants(number) for number in range(20)]
    shares = [1.0, 0.3] * 10
    rates = [
        share * theorem.largest_lr(each, tau) for share, each in zip(shares, constants, strict=True)
    ]
    for parts in {1, tau}:
        measured = problems.measure(
            Schedule(tau, parts), torch.tensor(rates, dtype=torch.float64), steps=30, runs=8
        )
        for value, each, lr in zip(measured.tolist(), constants, rates, strict=True):
            bound = theorem.bound(each, lr=lr, interval=tau, steps=30)
            assert bound.holds
            assert value <= bound.total


def test_the_bound_is_attained() -> None:
    """With curvature L everywhere, no noise and η = 1/L, one step takes it all."""
    problems = replace(
        draw(1, 1, 1, seed=0),
        curvature=torch.full((1, 1, 8), 2.0).double(),
        noise=torch.zeros(1, 8, 8).double(),
    )
    constants = problems.constants(0)
    for steps in (1, 5):
        measured = problems.measure(Schedule(1), torch.tensor([0.5]).double(), steps, runs=1)
        bound = Theorem1(1).bound(constants, lr=0.5, interval=1, steps=steps)
        assert float(measured) == pytest.approx(bound.total)


def test_smoothness_within_parts_is_not_enough_where_parts_are_coupled() -> None:
    """L_j of each diagonal block, as the paper may be read, can be too small by far.

    Eight parts of one coordinate, A = 0.05 I + 0.95 · 11ᵀ: every block has L_j = 1, the whole 7.65.
    Noise along the steep direction, starting at the minimum.
    """
    tau = size = 8
    ones = torch.ones(size, size, dtype=torch.float64)
    values, basis = torch.linalg.eigh(0.05 * torch.eye(size).double() + 0.95 * ones)
    coupled = replace(
        draw(1, 1, tau, seed=0, separable=False),
        basis=basis[None],
        curvature=values[None, None],
        center=torch.zeros(1, 1, size).double(),
        noise=ones[None] / size,
        start=torch.zeros(1, size).double(),
    )
    lr = 1 / 80
    measured = float(coupled.measure(Schedule.partial(tau), torch.tensor([lr]).double(), 400, 16))
    whole = coupled.constants(0)
    blocks = Constants((1.0,) * tau, whole.variance, whole.gap)
    settings = {"lr": lr, "interval": tau, "steps": 400}
    assert Theorem1(1).bound(blocks, **settings).holds
    assert measured > 3 * Theorem1(1).bound(blocks, **settings).total
    assert Theorem1(1).bound(whole, **settings).holds
    assert measured < Theorem1(1).bound(whole, **settings).total


def test_the_measured_speed_up_is_linear() -> None:
    """At η ∝ √(m/K), m workers need 1/m of the steps: ‖∇F‖² falls as 1/√m, as the bound does."""
    tau, steps = 4, 256
    for schedule in (Schedule.periodic(tau), Schedule.partial(tau)):
        measured = {}
        for workers in (1, 16):
            problem = replace(
                draw(1, workers, tau, seed=0),
                curvature=torch.linspace(0.2, 1, 8).double().expand(1, workers, -1),
                noise=torch.eye(8).double()[None],
            )
            lr = 0.5 / tau * math.sqrt(workers / 16)
            rate = torch.tensor([lr]).double()
            measured[workers] = float(problem.measure(schedule, rate, steps, runs=8))
            bound = Theorem1(workers).bound(problem.constants(0), lr=lr, interval=tau, steps=steps)
            assert bound.holds
            assert measured[workers] <= bound.total
        assert (measured[1] / measured[16]) ** 2 == pytest.approx(16, rel=0.15)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (((), (), 1.0), "constants for 0, 0 and 0 parts: give L_j and σ_j² of every part"),
        (((1.0,), (1.0, 1.0), 1.0), "constants for 1, 2 and 0 parts"),
        (((1.0,), (1.0,), 1.0, (1.0, 1.0)), "constants for 1, 1 and 2 parts"),
        (((1.0, 0.0), (1.0, 1.0), 1.0), "L_j = 1, 0: each must be positive and finite"),
        (((1.0,), (-1.0,), 1.0), "σ_j² = -1: must be finite and not below 0"),
        (((1.0,), (1.0,), math.nan), "F(u_1) − F_inf = nan: must be finite"),
        (((1.0,), (1.0,), 1.0, (math.inf,)), "κ_j² = inf: must be finite and not below 0"),
        (((1.0,), (1.0,), 1.0, (1.0,), 0.5), "β² = 0.5: must be finite and not below 1"),
    ],
)
def test_impossible_constants(arguments: tuple, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Constants(*arguments)


def test_impossible_settings() -> None:
    with pytest.raises(ValueError, match="0 workers train nothing: use 1 or more"):
        Theorem1(0)
    with pytest.raises(ValueError, match=r"weights 0.5, 0.6: must not be negative and sum to 1"):
        Theorem2((0.5, 0.6))
    with pytest.raises(ValueError, match="interval 0 is below 1: use 1 for synchronous SGD"):
        Theorem1(1).largest_lr(ONE, 0)
    with pytest.raises(ValueError, match="learning rate 0: must be positive and finite"):
        Theorem1(1).bound(ONE, lr=0.0, interval=1, steps=1)
    with pytest.raises(ValueError, match="0 steps have no mean: use 1 or more"):
        Theorem2((1.0,)).bound(ONE, lr=1.0, interval=1, steps=0)
    with pytest.raises(ValueError, match="learning rate nan"):
        largest_interval(Theorem1(1), ONE, math.nan)
