"""Client-level privacy: changes are clipped, summed over a fixed denominator, and noise is added.

McMahan, Ramage, Talwar, Zhang, Learning Differentially Private Recurrent Language Models, 2018.
Andrew, Thakkar, McMahan, Ramaswamy, Differentially Private Learning with Adaptive Clipping, 2021.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.aggregate import About, Aggregate

Draw = Callable[[About, str, Tensor], Tensor]
"""(about, what for, like this) -> numbers drawn from N(0, 1)."""


def seeded_normal(about: About, what: str, like: Tensor) -> Tensor:
    """Drawn from the seed: the same in all processes, and again when a step is repeated."""
    generator = torch.Generator(like.device).manual_seed(about.seed ^ (what == "share"))
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def part_shares(sizes: Sequence[int]) -> tuple[float, ...]:
    """c_j / C = √(d_j / d): squares that sum to 1, and as much room for each column.

    >>> part_shares([1, 3])
    (0.5, 0.8660254037844386)
    """
    return tuple(sqrt(size / sum(sizes)) for size in sizes)


def clip_(changes: Float[Tensor, "m n"], bound: float) -> Float[Tensor, "m"]:
    """Shorten rows that are longer than a bound; how long they were. What is not finite becomes 0.

    >>> rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [torch.nan, 0.0]])
    >>> clip_(rows, 1.0).tolist()[0], rows[0].norm().item(), rows[2].tolist()
    (5.0, 1.0, [0.0, 0.0])
    """
    norms: Tensor = torch.linalg.vector_norm(changes, dim=1)
    changes[~norms.isfinite()] = 0
    changes *= (bound / norms).clamp(max=1).nan_to_num()[:, None]
    return norms


@dataclass(frozen=True, slots=True)
class Quantile:
    """Lets the clip follow a quantile of norms: C ← C exp(−η (b − γ)).

    b is the share of clients whose change in a cycle was within the clip: a bit of each, and noise.
    """

    share: float
    """γ: the clients that are to be within."""
    rate: float
    """η."""
    noise: float
    """σ_b: the deviation of the noise on the sum of the bits."""


@dataclass(frozen=True, slots=True)
class PrivateMean:
    """u_j ← u_j + (Σ_i clip(x_ij − u_j, c_j) + N(0, (z C)²)) / qM, with Σ_j c_j² = C².

    The workers' weights are 1/qM, or 0 for slots that nobody is in: never renormalized.
    """

    clip: float
    """C, the first one if it follows a quantile."""
    noise: float
    """z, in clips."""
    shares: tuple[float, ...]
    """c_j / C of each part."""
    expected: float
    """qM."""
    local: bool = False
    """Whether each worker adds the noise to its own message, in place of once to the sum."""
    quantile: Quantile | None = None
    draw: Draw = seeded_normal

    def remembering(self, notes: dict[str, Any]) -> Aggregate:
        """The Aggregate that keeps there what it must know in the next averaging."""
        return partial(self._release, notes)

    def cost(self, part: int, *, ends_cycle: bool) -> float:
        """What the sum of a part costs of a cycle, whose costs add up to 1.

        With bits a part of z⁻² is theirs, told with the last sum.
        """
        share = self.shares[part] ** 2
        if not self.quantile or not self.noise:
            return share
        bits, sums = (2 * self.quantile.noise) ** -2, self.noise**-2
        return (share * sums + bits * ends_cycle) / (sums + bits)

    def current_clip(self, notes: dict[str, Any]) -> float:
        """C in this cycle."""
        return float(notes.get("clip", self.clip))

    def _release(
        self,
        notes: dict[str, Any],
        messages: Float[Tensor, "m l"],
        weights: Float[Tensor, "m"],
        about: About,
    ) -> Float[Tensor, "l"]:
        """The sum of one part with its noise, added to what was released before."""
        changes = about.parameters(messages) - about.last
        norms, total = self.noisy_sum(self.current_clip(notes), changes, weights, about)
        if self.quantile:
            self._follow(notes, norms, weights, about)
        return about.last + total

    def noisy_sum(
        self,
        clip: float,
        changes: Float[Tensor, "m n"],
        weights: Float[Tensor, "m"],
        about: About,
    ) -> tuple[Float[Tensor, "m"], Float[Tensor, "n"]]:
        """How long changes were, and their clipped sum with its noise; they are used up."""
        norms = clip_(changes, clip * self.shares[about.part])
        if self.local:
            changes += self.noise * clip * self.draw(about, "sum", changes)
        total = weights @ changes
        if not self.local:
            total += self.noise * clip / self.expected * self.draw(about, "sum", total)
        return norms, total

    def _follow(self, notes: dict[str, Any], norms: Tensor, weights: Tensor, about: About) -> None:
        """Add up what workers changed in a cycle; at its end let the clip follow."""
        squares = norms.double().square() + notes.get("squares", 0.0)
        parts = [*notes.get("parts", ()), about.part]
        notes.update(squares=squares, parts=parts)
        if len(parts) == len(self.shares):
            within = squares.sqrt() <= self.current_clip(notes)
            bits = within.double().sub(0.5)[weights > 0].sum()
            notes["clip"] = self.next_clip(notes, bits, about)
            del notes["squares"], notes["parts"]

    def next_clip(self, notes: dict[str, Any], bits: Float[Tensor, ""], about: About) -> float:
        """C of the next cycle, from the sum over clients of 1/2 if within the clip, else −1/2."""
        assert self.quantile
        noisy = bits + self.quantile.noise * self.draw(about, "share", bits)
        share = float(noisy) / self.expected + 0.5
        return self.current_clip(notes) * exp(-self.quantile.rate * (share - self.quantile.share))
