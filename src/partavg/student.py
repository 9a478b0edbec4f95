"""Student's t distribution: how sure a few pairs make a difference."""

from math import exp, inf, lgamma, log, log1p

_SMALL = 1e-300
_ROUNDS = 10_000  # of a continued fraction, which needs about the root of its arguments


def two_sided(t: float, degrees: float) -> float:
    """The probability that |T| is at least |t|, by degrees of freedom.

    >>> round(two_sided(4.3027, 2), 4)
    0.05
    """
    _check(degrees)
    if t == 0:
        return 1.0
    if abs(t) == inf:
        return 0.0
    # The smaller of both shares is computed, so that neither is rounded off.
    square = t / degrees * t
    if square > 1:
        return incomplete_beta(1 / (1 + square), degrees / 2, 0.5)
    return 1 - incomplete_beta(square / (1 + square), 0.5, degrees / 2)


def quantile(confidence: float, degrees: float) -> float:
    """The t with a share `confidence` of all values between -t and t.

    >>> round(quantile(0.95, 2), 3)
    4.303
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence} gives no interval: use one between 0 and 1")
    _check(degrees)
    outside, low, high = 1 - confidence, 0.0, 1.0
    while two_sided(high, degrees) > outside:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if two_sided(middle, degrees) > outside else (low, middle)
    return high


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if not 0 <= x <= 1:
        raise ValueError(f"I_x is not known at x = {x}: use 0 to 1")
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, the rest's does not
        return 1 - incomplete_beta(1 - x, b, a)
    scale = a * log(x) + b * log1p(-x) - _log_beta(a, b)
    return exp(scale) / a * _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1 / (1 + d1 / (1 + d2 / (1 + …))), by Lentz's method."""
    value, above, below = 1.0, 1.0, 0.0
    for place in range(_ROUNDS):
        half = place // 2
        if place == 0:
            factor = 1.0
        elif place % 2:
            factor = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            factor = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        below = 1 / (1 + factor * below or _SMALL)
        above = 1 + factor / above or _SMALL
        change = above * below
        value *= change
        if abs(change - 1) < 1e-15:
            break
    return value - 1


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def _check(degrees: float) -> None:
    if not degrees > 0:
        raise ValueError(f"{degrees} degrees of freedom tell nothing: use two pairs or more")
