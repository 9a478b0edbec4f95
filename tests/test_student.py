"""Student's t against published tables, closed forms and numeric integration."""

from math import atan, gamma, pi, sqrt

import numpy as np
import pytest

from partavg.student import incomplete_beta, quantile, two_sided

TABLE = {
    1: (6.3138, 12.7062, 63.6567), 2: (2.9200, 4.3027, 9.9248), 3: (2.3534, 3.1824, 5.8409),
    4: (2.1318, 2.7764, 4.6041), 5: (2.0150, 2.5706, 4.0321), 7: (1.8946, 2.3646, 3.4995),
    9: (1.8331, 2.2622, 3.2498), 10: (1.8125, 2.2281, 3.1693), 15: (1.7531, 2.1314, 2.9467),
    20: (1.7247, 2.0860, 2.8453), 30: (1.6973, 2.0423, 2.7500), 60: (1.6706, 2.0003, 2.6603),
    120: (1.6577, 1.9799, 2.6174),
}  # fmt: skip
"""Two-sided at 90, 95 and 99 %, as printed in textbooks."""


@pytest.mark.parametrize("degrees", TABLE)
def test_published_quantiles(degrees: int) -> None:
    found = [quantile(confidence, degrees) for confidence in (0.90, 0.95, 0.99)]
    assert found == pytest.approx(TABLE[degrees], abs=5.1e-5)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 24, 99])
@pytest.mark.parametrize("t", [0.01, 0.5, 1.0, 2.5, 6.0])
def test_the_area_under_the_density(t: float, degrees: int) -> None:
    x = np.linspace(0, t, 20_001)
    height = gamma((degrees + 1) / 2) / (sqrt(degrees * pi) * gamma(degrees / 2))
    density = height * (1 + x**2 / degrees) ** (-(degrees + 1) / 2)
    weights = np.where(np.arange(len(x)) % 2, 4.0, 2.0)  # Simpson's
    weights[[0, -1]] = 1
    inside = 2 * (weights @ density) * (x[1] - x[0]) / 3
    assert two_sided(t, degrees) == pytest.approx(1 - inside, abs=1e-12)
    assert two_sided(-t, degrees) == two_sided(t, degrees)


@pytest.mark.parametrize("t", [1e-8, 0.3, 1.0, 20.0, 1e6])
def test_closed_forms(t: float) -> None:
    """One degree is Cauchy's distribution, two have a root only; tails keep their digits."""
    assert two_sided(t, 1) == pytest.approx(2 * atan(1 / t) / pi, rel=1e-12)
    tail = 2 / (2 + t**2) / (1 + t / sqrt(2 + t**2))  # 1 - t / sqrt(2 + t²), without cancelling
    assert two_sided(t, 2) == pytest.approx(tail, rel=1e-12)


@pytest.mark.parametrize("confidence", [1e-6, 0.5, 0.9875, 0.99999])
def test_a_quantile_is_the_inverse(confidence: float) -> None:
    for degrees in (1, 2, 4, 30):
        assert 1 - two_sided(quantile(confidence, degrees), degrees) == pytest.approx(
            confidence, rel=1e-9
        )


def test_many_degrees_are_normal() -> None:
    assert quantile(0.95, 1e7) == pytest.approx(1.959964, abs=1e-6)


def test_the_beta_function_mirrors_itself() -> None:
    for x in (0.01, 0.3, 0.5, 0.9):
        assert incomplete_beta(x, 2.5, 0.5) == pytest.approx(
            1 - incomplete_beta(1 - x, 0.5, 2.5), rel=1e-12
        )
        assert incomplete_beta(x, 1, 3) == pytest.approx(1 - (1 - x) ** 3, rel=1e-12)
    assert (incomplete_beta(0, 2, 3), incomplete_beta(1, 2, 3)) == (0, 1)


def test_ends() -> None:
    assert (two_sided(0, 3), two_sided(float("inf"), 3)) == (1, 0)
    with pytest.raises(ValueError, match="0 degrees of freedom tell nothing: use two pairs"):
        two_sided(1, 0)
    with pytest.raises(ValueError, match="a confidence of 95 gives no interval: use one between"):
        quantile(95, 3)
    with pytest.raises(ValueError, match="I_x is not known at x = 2: use 0 to 1"):
        incomplete_beta(2, 1, 1)
