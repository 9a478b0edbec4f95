"""What a private run promises, and how."""

from dataclasses import dataclass
from math import inf, sqrt

from partavg.core.arguments import check_flag, check_number
from partavg.privacy.accountant import LEAST_NOISE


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """Client-level differential privacy, see docs/privacy.md.

    All that a client sends in a cycle is clipped to the norm `clip`, part by part, and every sum
    gets Gaussian noise of `noise` times that clip. The run ends before it spends more than
    `max_epsilon` at `delta`. With a `quantile` the clip follows that quantile of clients' norms,
    at `quantile_rate`, known by a bit of each and `quantile_noise` on their sum (a twentieth of the
    clients expected, if not given). With `local` each client adds the noise to its own message.

    >>> Privacy(clip=1.0, noise=1.1).noise_of_sums(100)
    1.1
    """

    clip: float
    noise: float
    delta: float = 1e-5
    max_epsilon: float | None = None
    local: bool = False
    quantile: float | None = None
    quantile_rate: float = 0.2
    quantile_noise: float | None = None

    def __post_init__(self) -> None:
        self._check("clip", 0, inf, "a norm above 0, like 1.0")
        check_flag("privacy.local =", self.local)
        check_number("noise", self.noise)
        if self.noise < 0:
            raise ValueError(f"privacy.noise = {self.noise} is below 0: use a multiple of the clip")
        if 0 < self.noise < (least := (1 + self.local) * LEAST_NOISE):
            raise ValueError(
                f"privacy.noise = {self.noise} promises nothing, with an ε above 30 for one cycle: "
                f"use 0 to clip only, or at least {least}"
            )
        self._check("delta", 0, 1, "a small probability, below 1 / clients, like 1e-5")
        if self.max_epsilon is not None:
            self._check("max_epsilon", 0, inf, "a number above 0, like 8.0")
            if not self.noise:
                raise ValueError(
                    f"privacy.max_epsilon = {self.max_epsilon} cannot be kept without noise: give "
                    f"privacy.noise, or leave it out"
                )
        if self.quantile is None:
            return
        self._check("quantile", 0, 1, "a share of the clients, like 0.5")
        self._check("quantile_rate", 0, inf, "a number above 0, like 0.2")
        if self.quantile_noise is not None:
            self._check("quantile_noise", 0, inf, "a number above 0, like a twentieth of clients")
        if self.local:
            raise ValueError(
                "privacy.quantile asks for a bit of each client, which privacy.local does not "
                "protect: leave one of them out"
            )

    def _check(self, name: str, least: float, most: float, hint: str) -> None:
        value = getattr(self, name)
        check_number(f"privacy.{name} =", value)
        if not least < value < most:
            raise ValueError(f"privacy.{name} = {value} cannot be: use {hint}")

    def bit_noise(self, expected: float) -> float:
        """σ_b: the deviation of the noise on the sum of the bits, of so many clients."""
        return expected / 20 if self.quantile_noise is None else self.quantile_noise

    def noise_of_sums(self, expected: float) -> float:
        """z_Δ = (z⁻² − (2 σ_b)⁻²)^(−½): what is left for sums once bits have had their share.

        A cycle then costs what one Gaussian of multiplier z costs, bits included.
        """
        if self.quantile is None or not self.noise:
            return self.noise
        bits = 2 * self.bit_noise(expected)
        if bits <= self.noise:
            raise ValueError(
                f"privacy.quantile_noise = {bits / 2:g} leaves nothing of privacy.noise = "
                f"{self.noise} for sums: use more than {self.noise / 2:g}, or more clients"
            )
        if bits > 2 * expected:
            raise ValueError(
                f"privacy.quantile_noise = {bits / 2:g} is more than the {expected:g} clients that "
                f"are expected, so that the clip would follow noise: use less, or leave it out"
            )
        return 1 / sqrt(self.noise**-2 - bits**-2)
