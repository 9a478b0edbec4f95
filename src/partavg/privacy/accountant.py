"""What releases cost together, as Google's dp-accounting counts it.

A cycle over all parts is one release of the Gaussian mechanism: adaptive Gaussian releases compose
like one with the summed squared sensitivities, and Σ c_j² = C². Clients are drawn once per cycle,
so that a cycle is sampled as a whole, and never a part by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import ceil, floor, inf, log10, sqrt
from typing import Any

from partavg.core.arguments import check_number, check_whole

LEAST_NOISE = 0.2
"""In clips: less takes minutes and all memory to account, for an ε that protects nobody."""
_MOST = 1 << 20  # cycles


@dataclass(frozen=True, slots=True)
class Accountant:
    """ε of cycles, each a Gaussian of multiplier `noise` on clients drawn with a probability.

    Two sets of clients are neighbors that differ by one client, there or not there.
    """

    noise: float
    fraction: float = 1.0
    delta: float = 1e-5

    def epsilon(self, cycles: int) -> float:
        """Of so many cycles."""
        return self.epsilon_of({1.0: cycles})

    def epsilon_of(self, cycles: Mapping[float, int]) -> float:
        """Of cycles, counted by how many times the squared clip was released in each.

        A part that is released again to clients of the same draw makes its cycle larger.
        """
        spent = {size: count for size, count in cycles.items() if size and count}
        if not spent:
            return 0.0
        if not self.noise:
            return inf
        if self.fraction == 1:
            total = sum(size * count for size, count in spent.items())
            return _gaussian(self.noise / sqrt(total), self.delta)
        composed = None
        for size, count in spent.items():
            one = _sampled(self.noise / sqrt(size), self.fraction).self_compose(count)
            composed = composed.compose(one) if composed else one
        assert composed is not None
        return float(composed.get_epsilon_for_delta(self.delta))

    def most_cycles(self, epsilon: float) -> int:
        """The most cycles that cost no more than ε."""
        if self.epsilon(1) > epsilon:
            return 0
        low, high = 1, 2
        while high < _MOST and self.epsilon(high) <= epsilon:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= epsilon else (low, middle)
        return low


def check_installed() -> None:
    """Raise a ValueError if there is nothing to count with."""
    if find_spec("dp_accounting") is None:  # clients need not import it, which takes a second
        raise ValueError(
            "privacy is accounted by the package dp-accounting, which is not installed: pip "
            "install 'partavg[privacy]'"
        )


@lru_cache(maxsize=4096)
def _gaussian(noise: float, delta: float) -> float:
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(noise, delta))


@lru_cache(maxsize=64)
def _sampled(noise: float, fraction: float) -> Any:
    """The privacy loss of one cycle, a sampled Gaussian: an upper bound, as all that follows."""
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(noise, sampling_prob=fraction)


def noise_for(epsilon: float, cycles: int, *, fraction: float = 1.0, delta: float = 1e-5) -> float:
    """The noise, to three digits, with which so many cycles cost no more than ε.

    `noise_for(4.0, 50)` is 7.65. Less than 0.2 it never is.
    """
    check_installed()
    for name, value in (("epsilon", epsilon), ("fraction", fraction), ("delta", delta)):
        check_number(name, value)
    check_whole("cycles", cycles, 1)
    if cycles > _MOST:
        raise ValueError(f"cycles {cycles} are too many to count: use up to {_MOST}")
    if epsilon <= 0 or not 0 < fraction <= 1 or not 0 < delta < 1:
        raise ValueError(
            f"epsilon {epsilon}, fraction {fraction} and delta {delta} cannot be: use numbers "
            f"above 0, the latter two up to 1"
        )

    def costs(noise: float) -> float:
        return Accountant(noise, fraction, delta).epsilon(cycles)

    low, high = 0.5, 1.0
    while costs(high) > epsilon:
        low, high = high, 2 * high
    while costs(low) <= epsilon:
        if low == LEAST_NOISE:
            return low
        low, high = max(low / 2, LEAST_NOISE), low
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if costs(middle) <= epsilon else (middle, high)
    digits = 2 - floor(log10(high))
    return float(ceil(high * 10**digits) / 10**digits)
