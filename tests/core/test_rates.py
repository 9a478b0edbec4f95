from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partavg.core.rates import RATES, Cosine, StepDecay, nearest

EPOCH = {"steps": Fraction(1), "epochs": Fraction(50_000, 128 * 32)}


@pytest.mark.parametrize(
    ("epochs", "samples", "images", "steps"),
    [
        (300, 50_000, 4096, 3662), (250, 50_000, 4096, 3052), (90, 60_000, 4096, 1318),
        (90, 25_000, 1280, 1758), (160, 73_257, 8192, 1431), (160, 604_388, 8192, 11_804),
    ],
)  # fmt: skip
def test_the_budgets_of_the_paper_in_steps(epochs: int, samples: int, images: int, steps: int):
    assert nearest(epochs, Fraction(samples, images)) == steps


def test_decimals_are_exact() -> None:
    assert nearest(0.1, Fraction(5)) == 1, "0.5 rounds up, as 0.1 is a tenth and not a float"
    assert nearest(2.5, Fraction(1)) == 3


def test_the_schedule_of_the_paper() -> None:
    """Warm-up over 5 epochs, a tenth after 150 and 225 of 300."""
    rate = RATES["step"](1.2, 3662, EPOCH, warmup=5.0, at=(150.0, 225.0), unit="epochs")
    assert rate == StepDecay(1.2, warmup=61, at=(1831, 2747))
    assert rate(1) == pytest.approx(1.2 / 61)
    assert rate(30) == pytest.approx(1.2 * 30 / 61)
    assert rate(61) == rate(1831) == 1.2
    assert rate(1832) == rate(2747) == pytest.approx(0.12)
    assert rate(2748) == rate(3662) == pytest.approx(0.012)


def test_steps_are_a_unit_too() -> None:
    rate = RATES["step"](0.4, 10_000, EPOCH, at=(5000.0, 7500.0))
    assert [rate(k) for k in (1, 5000, 5001)] == pytest.approx([0.4, 0.4, 0.04])
    assert RATES["constant"](0.4, 10, EPOCH, warmup=2.0)(1) == pytest.approx(0.2)


@given(st.integers(1, 500), st.integers(0, 20), st.floats(0, 1))
def test_a_cosine_falls_from_the_base_to_the_floor(steps: int, warmup: int, floor: float) -> None:
    rate = Cosine(0.5, steps + warmup, warmup, floor)
    rates = [rate(step) for step in range(1, steps + warmup + 1)]
    assert rates[warmup] == pytest.approx(0.5)
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rate(steps + warmup + 1) == pytest.approx(0.5 * floor), "the step after the last"
    assert rate(warmup + steps // 2 + 1) == pytest.approx(
        0.5 * (1 + floor) / 2, rel=0.5 * 4 / steps
    )


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("step", {"at": (5.0, 3.0)}, r"decays at steps \[5, 3\]: name them in rising order"),
        ("step", {"factor": 0.0}, "factor 0.0 stops training"),
        ("step", {"warmup": -1.0}, "a warm-up of -1.0 makes no sense"),
        ("cosine", {"floor": 2.0}, r"floor 2.0 is outside \[0, 1\]"),
    ],
)
def test_impossible_schedules_are_refused(name: str, options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RATES[name](0.1, 10, EPOCH, **options)
