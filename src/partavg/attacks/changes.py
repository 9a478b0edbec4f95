"""Attackers that send something else than they found."""

from dataclasses import dataclass
from statistics import NormalDist

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.attacks.attack import Attack, with_parameters
from partavg.core.aggregate import About


@dataclass(frozen=True)
class SignFlip(Attack):
    """v − c (x − v): as far as what they found, `scale` times, the other way."""

    scale: float = 1.0

    def lie(
        self, messages: Float[Tensor, "m l"], liars: Int[Tensor, "a"], about: About
    ) -> Float[Tensor, "a l"]:
        """The other way from v, what all last had in common."""
        return _stretched(messages[liars], about, -float(self.scale))


@dataclass(frozen=True)
class Scaled(Attack):
    """v + c (x − v): what they found, `scale` times as far."""

    scale: float = 10.0

    def lie(
        self, messages: Float[Tensor, "m l"], liars: Int[Tensor, "a"], about: About
    ) -> Float[Tensor, "a l"]:
        """Too far from v, what all last had in common."""
        return _stretched(messages[liars], about, float(self.scale))


@dataclass(frozen=True)
class Noise(Attack):
    """x + ε: what they found, with Gaussian noise of this deviation on each parameter."""

    deviation: float = 1.0

    def lie(
        self, messages: Float[Tensor, "m l"], liars: Int[Tensor, "a"], about: About
    ) -> Float[Tensor, "a l"]:
        """The same noise on every device."""
        own = messages[liars]
        params, draws = about.parameters(own), torch.Generator().manual_seed(about.seed)
        noise = torch.randn(params.shape, generator=draws, dtype=torch.float64).to(params)
        return with_parameters(own, about, params + float(self.deviation) * noise)


@dataclass(frozen=True)
class Constant(Attack):
    """The same number everywhere, in the statistics that ride along as well."""

    value: float = 1e30

    def lie(
        self, messages: Float[Tensor, "m l"], liars: Int[Tensor, "a"], about: About
    ) -> Float[Tensor, "a l"]:
        """Nothing of what they found."""
        return torch.full_like(messages[liars], float(self.value))


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """μ − z σ of what the honest send, so near that no number looks wrong.

    By itself z is as large as lets some of the honest be farther away, so many that with the
    attackers they are a majority (Baruch, Baruch, Goldberg, 2019).
    """

    z: float | None = None

    def lie(
        self, messages: Float[Tensor, "m l"], liars: Int[Tensor, "a"], about: About
    ) -> Float[Tensor, "a l"]:
        """The same for all of them, number by number."""
        params = about.parameters(messages)
        honest = torch.ones(len(messages), dtype=torch.bool, device=messages.device)
        honest[liars] = False
        others = params[honest] if len(liars) < len(messages) else params
        z = largest_z(len(messages), len(liars)) if self.z is None else float(self.z)
        sent = others.mean(0) - z * others.std(0, correction=0)
        return with_parameters(messages[liars], about, sent.expand(len(liars), -1))


def largest_z(workers: int, attackers: int) -> float:
    """How many deviations away as many of the honest are as a majority lacks; 0 if none are.

    >>> round(largest_z(50, 24), 2), largest_z(50, 1)
    (1.43, 0.0)
    """
    honest, lacking = workers - attackers, workers // 2 + 1 - attackers
    nearer = (honest - max(1, lacking)) / max(1, honest)
    return max(0.0, NormalDist().inv_cdf(nearer)) if nearer > 0 else 0.0


def _stretched(messages: Float[Tensor, "a l"], about: About, factor: float) -> Float[Tensor, "a l"]:
    params = about.parameters(messages)
    return with_parameters(messages, about, torch.lerp(about.last, params, factor))
