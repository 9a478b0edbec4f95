"""The paper's two theorems: learning-rate limits and right-hand sides, term by term.

Lee, Sahu, He, Avestimehr: Partial Model Averaging in Federated Learning, 2022, section 4. Both
bound the mean of E‖∇F(u_k)‖² over the first K steps, for any schedule that averages every part at
least once in τ steps.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Constants:
    """What the theorems assume to be known, part by part.

    ‖∇F_i(x) − ∇F_i(y)‖² ≤ Σ_j L_j² ‖x_j − y_j‖² for every worker i: this is what the proofs use.
    One L for all parts, the smoothness of the whole model, always satisfies it.
    """

    smoothness: tuple[float, ...]
    """L_j."""
    variance: tuple[float, ...]
    """σ_j², of one worker's stochastic gradient: E‖g_ij − ∇_j F_i‖² ≤ σ_j²."""
    gap: float
    """F(u_1) − F_inf."""
    dissimilarity: tuple[float, ...] = ()
    """κ_j²: Σ_i p_i ‖∇_j F_i‖² ≤ β² ‖∇_j F‖² + κ_j²; empty where the data are IID."""
    amplification: float = 1.0
    """β²."""

    def __post_init__(self) -> None:
        parts = len(self.smoothness)
        counts = {len(self.variance), len(self.dissimilarity or self.smoothness)}
        if counts != {parts} or not parts:
            raise ValueError(
                f"constants for {parts}, {len(self.variance)} and {len(self.dissimilarity)} parts: "
                f"give L_j and σ_j² of every part, and κ_j² of every part or of none"
            )
        if not all(0 < value < math.inf for value in self.smoothness):
            raise ValueError(f"L_j = {_list(self.smoothness)}: each must be positive and finite")
        for name, values in (
            ("σ_j²", self.variance),
            ("κ_j²", self.dissimilarity),
            ("F(u_1) − F_inf", (self.gap,)),
        ):
            if not all(0 <= value < math.inf for value in values):
                raise ValueError(f"{name} = {_list(values)}: must be finite and not below 0")
        if not 1 <= self.amplification < math.inf:
            raise ValueError(f"β² = {self.amplification:g}: must be finite and not below 1")

    @property
    def roughest(self) -> float:
        """L_max."""
        return max(self.smoothness)


@dataclass(frozen=True, slots=True)
class Bound:
    """The right-hand side of a theorem."""

    terms: Mapping[str, float]
    """start: how far F was from its minimum; noise: that of the gradients, less what averaging over
    workers takes away; drift: noise that moves the models apart; heterogeneity: data that do."""
    lr: float
    largest_lr: float
    """The theorem says nothing about a learning rate above this."""

    @property
    def holds(self) -> bool:
        """Whether the learning rate satisfies the theorem's condition."""
        return self.lr <= self.largest_lr

    @property
    def total(self) -> float:
        """The bound itself."""
        return sum(self.terms.values())

    @property
    def dominant(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=self.terms.__getitem__)


@runtime_checkable
class Theorem(Protocol):
    """What both theorems answer."""

    def largest_lr(self, constants: Constants, interval: int) -> float:
        """The largest learning rate that the theorem allows at an interval."""
        ...

    def bound(self, constants: Constants, *, lr: float, interval: int, steps: int) -> Bound:
        """The right-hand side after so many steps."""
        ...


@dataclass(frozen=True, slots=True)
class Theorem1:
    """IID data, m workers of equal weight.

    If L_max² η² τ(τ−1) + η L_max ≤ 1, the bound is
    (2/ηK) (F(u_1) − F_inf) + (η/m) Σ_j L_j σ_j² + η² (τ−1) Σ_j L_j² σ_j².

    >>> constants = Constants(smoothness=(2.0, 1.0), variance=(1.0, 4.0), gap=3.0)
    >>> bound = Theorem1(workers=4).bound(constants, lr=0.1, interval=2, steps=100)
    >>> {name: round(term, 3) for name, term in bound.terms.items()}
    {'start': 0.6, 'noise': 0.15, 'drift': 0.08}
    >>> bound.largest_lr, bound.holds, bound.dominant
    (0.25, True, 'start')
    """

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"{self.workers} workers train nothing: use 1 or more")

    def largest_lr(self, constants: Constants, interval: int) -> float:
        """1 / (τ L_max): the condition is (η L_max τ − 1)(η L_max (τ−1) + 1) ≤ 0."""
        _check(interval=interval)
        return 1 / (interval * constants.roughest)

    def bound(self, constants: Constants, *, lr: float, interval: int, steps: int) -> Bound:
        """The right-hand side after so many steps."""
        _check(lr=lr, interval=interval, steps=steps)
        terms = {
            "start": 2 * constants.gap / (lr * steps),
            "noise": lr / self.workers * _noise(constants),
            "drift": lr**2 * (interval - 1) * _squared(constants, constants.variance),
        }
        return Bound(terms, lr, self.largest_lr(constants, interval))


@dataclass(frozen=True, slots=True)
class Theorem2:
    """Non-IID data, workers with weights p_i.

    If η L_max ≤ min{1/2, 1/√(2τ(τ−1)(2β²+1))}, the bound is
    (4/ηK) (F(u_1) − F_inf) + 4η Σ_i p_i² Σ_j L_j σ_j² + 3η² (τ−1) Σ_j L_j² σ_j²
    + 6η² τ(τ−1) Σ_j L_j² κ_j².

    >>> constants = Constants((2.0, 1.0), (1.0, 4.0), gap=3.0, dissimilarity=(0.5, 1.0))
    >>> bound = Theorem2(weights=(0.5, 0.25, 0.25)).bound(constants, lr=0.1, interval=2, steps=100)
    >>> {name: round(term, 3) for name, term in bound.terms.items()}
    {'start': 1.2, 'noise': 0.9, 'drift': 0.24, 'heterogeneity': 0.36}
    """

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(p >= 0 for p in self.weights) or not math.isclose(sum(self.weights), 1):
            raise ValueError(f"weights {_list(self.weights)}: must not be negative and sum to 1")

    def largest_lr(self, constants: Constants, interval: int) -> float:
        """min{1/2, 1/√(2τ(τ−1)(2β²+1))} / L_max."""
        _check(interval=interval)
        drift = 2 * interval * (interval - 1) * (2 * constants.amplification + 1)
        return min(0.5, 1 / math.sqrt(drift) if drift else math.inf) / constants.roughest

    def bound(self, constants: Constants, *, lr: float, interval: int, steps: int) -> Bound:
        """The right-hand side after so many steps."""
        _check(lr=lr, interval=interval, steps=steps)
        kappa = constants.dissimilarity or (0.0,) * len(constants.smoothness)
        terms = {
            "start": 4 * constants.gap / (lr * steps),
            "noise": 4 * lr * sum(p**2 for p in self.weights) * _noise(constants),
            "drift": 3 * lr**2 * (interval - 1) * _squared(constants, constants.variance),
            "heterogeneity": 6 * lr**2 * interval * (interval - 1) * _squared(constants, kappa),
        }
        return Bound(terms, lr, self.largest_lr(constants, interval))


def largest_interval(theorem: Theorem, constants: Constants, lr: float) -> int:
    """The largest τ at which a theorem allows a learning rate; 0 if it does at none.

    >>> constants = Constants(smoothness=(2.0,), variance=(1.0,), gap=1.0)
    >>> [largest_interval(Theorem1(workers=4), constants, lr) for lr in (0.05, 0.06, 0.6)]
    [10, 8, 0]
    """
    _check(lr=lr)
    low, high = 0, 1
    while theorem.largest_lr(constants, high) >= lr:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if theorem.largest_lr(constants, middle) >= lr:
            low = middle
        else:
            high = middle
    return low


def _noise(constants: Constants) -> float:
    """Σ_j L_j σ_j²."""
    pairs = zip(constants.smoothness, constants.variance, strict=True)
    return sum(smoothness * variance for smoothness, variance in pairs)


def _squared(constants: Constants, values: tuple[float, ...]) -> float:
    """Σ_j L_j² times a value per part."""
    pairs = zip(constants.smoothness, values, strict=True)
    return sum(smoothness**2 * value for smoothness, value in pairs)


def _check(lr: float = 1.0, interval: int = 1, steps: int = 1) -> None:
    if not 0 < lr < math.inf:
        raise ValueError(f"learning rate {lr:g}: must be positive and finite")
    if interval < 1:
        raise ValueError(f"interval {interval} is below 1: use 1 for synchronous SGD")
    if steps < 1:
        raise ValueError(f"{steps} steps have no mean: use 1 or more")


def _list(values: tuple[float, ...]) -> str:
    shown = ", ".join(f"{value:g}" for value in values[:4])
    return shown + (", …" if len(values) > 4 else "")
