"""Whole messages by how far they went: norm bound and geometric median, weighted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.aggregates.coordinates import Median
from partavg.core.aggregate import About
from partavg.core.arguments import check_number, check_whole

Center = Callable[[Tensor, Tensor, About], Tensor]
"""(parameters [m, n] of messages, weights [m], what they are about) -> those of one message [n]."""

_NEAR, _LEAST, _MOST_ROUNDS = 0.1, 1e-100, 1000


@dataclass(frozen=True, slots=True)
class NormBound:
    """Changes longer than a bound are shortened to it: v + ∑ p_i (x_i − v) min(1, τ / ‖x_i − v‖).

    v are the parameters as all last had them in common. τ is `times` the median of the norms; or a
    `bound` for the whole model, of which a part has the square root of its share of the numbers, so
    that one averaging of all parts is bounded as that of the whole. It is a step of centered
    clipping (Karimireddy, He, Jaggi, 2021) from v.
    """

    times: float = 1.0
    bound: float | None = None
    needs_parameters: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given = {"times": self.times} if self.bound is None else {"bound": self.bound}
        for name, value in given.items():
            check_number(name, value)
            if not value > 0:
                raise ValueError(
                    f"{name} {value} would let nobody change anything: use more than 0"
                )

    def __call__(
        self, messages: Float[Tensor, "m l"], weights: Float[Tensor, "m"], about: About
    ) -> Float[Tensor, "l"]:
        """Bound what changed; of what else is in a message the median."""
        return _beside_median(messages, weights, about, self._center)

    def _center(
        self, rows: Float[Tensor, "m n"], weights: Float[Tensor, "m"], about: About
    ) -> Float[Tensor, "n"]:
        norms = _distances(rows, about.last)
        if self.bound is None:
            bound = float(self.times) * Median()(norms[:, None], weights, about)
        else:
            bound = norms.new_tensor([float(self.bound) * about.share**0.5])
        kept = weights * (bound / norms).clamp(max=1).nan_to_num(1.0)
        kept = torch.where(norms.isfinite(), kept, 0)
        return _weighted(rows, kept) + about.last * (1 - kept.sum())


@dataclass(frozen=True, slots=True)
class GeometricMedian:
    """What is nearest to all: argmin_u ∑ p_i ‖x_i − u‖ (Pillutla, Kakade, Harchaoui, 2022).

    By so many `rounds` of Weiszfeld's algorithm from where all last were. A distance counts as a
    tenth of the median distance at least: else it would stay at a message that is just there.
    """

    rounds: int = 16
    needs_parameters: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if check_whole("rounds", self.rounds, 1) > _MOST_ROUNDS:
            raise ValueError(f"{self.rounds} rounds take too long: use up to {_MOST_ROUNDS}")

    def __call__(
        self, messages: Float[Tensor, "m l"], weights: Float[Tensor, "m"], about: About
    ) -> Float[Tensor, "l"]:
        """Of the parameters; of what else is in a message the median."""
        return _beside_median(messages, weights, about, self._center)

    def _center(
        self, rows: Float[Tensor, "m n"], weights: Float[Tensor, "m"], about: About
    ) -> Float[Tensor, "n"]:
        changes = rows - about.last
        some = _distances(rows, about.last).isfinite()
        if not bool(some.any()):
            return about.last
        if not bool(some.all()):
            changes, weights = changes[some], weights[some]
        products = (changes @ changes.T).double()  # from these follow all distances
        squares, shares = products.diagonal(), weights.double()
        mixture = torch.zeros_like(shares)
        for _ in range(self.rounds):
            inner = products @ mixture
            norms = (squares - 2 * inner + mixture @ inner).clamp(min=0).sqrt()
            least = _NEAR * Median()(norms[:, None], shares, about)
            near = shares / torch.maximum(norms, least).clamp(min=_LEAST)
            mixture = near / near.sum()
        return about.last + mixture.to(changes.dtype) @ changes


def _beside_median(
    messages: Float[Tensor, "m l"], weights: Float[Tensor, "m"], about: About, center: Center
) -> Float[Tensor, "l"]:
    """A center of the parameters, and the median of the statistics that ride along."""
    made = center(about.parameters(messages), weights, about)
    others = messages[:, about.places[-1].stop :]
    return torch.cat([made, Median()(others, weights, about)]) if others.shape[1] else made


def _distances(rows: Float[Tensor, "m n"], center: Float[Tensor, "n"]) -> Float[Tensor, "m"]:
    """‖x_i − v‖, without a copy of all rows."""
    exactly = "donot_use_mm_for_euclid_dist"
    return torch.cdist(rows, center[None], compute_mode=exactly)[:, 0]


def _weighted(rows: Float[Tensor, "m n"], weights: Float[Tensor, "m"]) -> Float[Tensor, "n"]:
    """∑ p_i x_i; what weighs nothing may be infinite."""
    some = weights > 0
    return weights @ rows if bool(some.all()) else weights[some] @ rows[some]
