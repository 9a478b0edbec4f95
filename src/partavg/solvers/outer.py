"""An outer optimizer that takes the change between two averagings of a part as its gradient.

FedAvgM: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification, 2019. FedAdam: Reddi et al., Adaptive Federated Optimization, 2021. DiLoCo:
Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023.
"""

import warnings
from dataclasses import dataclass, field, replace

from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import Abilities, abilities, below, name_of
from partavg.core.arguments import check_kind, check_number
from partavg.core.layout import Layout
from partavg.core.solver import Solver, State, Step, Sync
from partavg.solvers.adam import Adam, adamw
from partavg.solvers.drift import ANCHOR, anchored
from partavg.solvers.fedprox import FedProx
from partavg.solvers.sgd import SGD


@dataclass(frozen=True, slots=True)
class Outer:
    """q = r_j − u_j;  r_j ← optimizer(r_j, q);  x_i ← r_j, when part j is averaged.

    `optimizer` is any solver without needs of its own (SGD, Adam, AdamW), `lr` its learning rate.
    With SGD and lr 1 it is plain averaging. To let workers keep some of their own give `mix`, α, to
    `attach`, `Simulation` or a recipe's averaging; `keep` is the old way to say it.

    >>> Outer(optimizer=SGD(momentum=0.9), lr=0.5).lr
    0.5
    """

    optimizer: Solver = field(default_factory=lambda: SGD(momentum=0.9))
    lr: float = 1.0
    keep: float = 0.0
    base: Solver = field(default_factory=SGD)

    def __post_init__(self) -> None:
        check_number("an outer lr of", self.lr)
        check_number("keep", self.keep)
        for name in ("optimizer", "base"):
            check_kind(name, getattr(self, name), Solver, "a solver, like partavg.SGD()")
        if not self.lr > 0:
            raise ValueError(f"an outer lr of {self.lr} stops training: use a number above 0")
        if below(self.optimizer) is not None:
            raise ValueError(
                f"{name_of(self.optimizer)} cannot be an outer optimizer, since it needs workers: "
                f"use SGD or Adam"
            )
        if abilities(self.optimizer).whole_tensors:
            raise ValueError(
                f"{name_of(self.optimizer)} cannot be an outer optimizer, since parts need not be "
                f"whole tensors: use SGD or Adam"
            )
        if not 0 <= self.keep < 1:
            raise ValueError(f"keep {self.keep} is outside [0, 1): 0 takes the average over whole")
        if self.keep:
            warnings.warn(
                f"keep = {self.keep} is what averaging does whatever the solver: give mix = "
                f"{self.keep} to attach, Simulation or a recipe's averaging; keep goes with 0.3",
                DeprecationWarning,
                stacklevel=3,
            )

    @property
    def abilities(self) -> Abilities:
        """The base's, and a step away from the average."""
        return replace(
            abilities(self.base),
            plain=False,
            outer_step=True,
            keeps_apart=self.keep > 0,
            renewed_by_averaging=False,
        )

    def at_rest(self) -> FedProx:
        """Plain averaging that keeps r where workers are: the outer step may begin at any time."""
        return FedProx(0.0, self.base)

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """The base's memory, r, and the optimizer's memory of it."""
        outer = self.optimizer.init(params[:1], layout)
        own = {f"outer.{name}": tensor for name, tensor in outer.items()}
        return {**self.base.init(params, layout), **anchored(params), **own}

    def step_(
        self, params: Float[Tensor, "m n"], grads: Float[Tensor, "m n"], state: State, now: Step
    ) -> None:
        """The base's step."""
        self.base.step_(params, grads, state, now)

    def encode(self, rows: Float[Tensor, "m n"], state: State, sync: Sync) -> Float[Tensor, "m l"]:
        """What the base sends."""
        return self.base.encode(rows, state, sync)

    def decode_(
        self, rows: Float[Tensor, "m n"], total: Float[Tensor, "l"], state: State, sync: Sync
    ) -> None:
        """Average as the base does, then let the optimizer decide how far to go."""
        local = rows.clone() if self.keep else None
        anchor = state[ANCHOR].clone()  # the base may move it
        self.base.decode_(rows, total, state, sync)
        own = {k.removeprefix("outer."): v for k, v in state.items() if k.startswith("outer.")}
        taken = anchor.new_full((1, 1), sync.outer_steps)
        self.optimizer.step_(anchor, anchor - rows[:1], own, Step(self.lr, taken))
        state[ANCHOR].copy_(anchor)
        rows.copy_(anchor)
        if local is not None:
            rows.lerp_(local, self.keep)


_SGD = SGD()


def fedavgm(
    *, lr: float = 1.0, momentum: float = 0.9, nesterov: bool = False, base: Solver = _SGD
) -> Outer:
    """Momentum on the averages."""
    return Outer(SGD(momentum=momentum, nesterov=nesterov), lr, base=base)


def fedadam(
    *,
    lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
    base: Solver = _SGD,
) -> Outer:
    """Adam on the averages, as Algorithm 2 of the paper: without bias correction, v₋₁ = ε²."""
    return Outer(Adam(beta1, beta2, eps, bias_correction=False), lr, base=base)


def diloco(
    *,
    lr: float = 0.7,
    momentum: float = 0.9,
    keep: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.1,
) -> Outer:
    """Nesterov momentum on the averages of workers that train with AdamW, decay 0.1 as there."""
    local = adamw(beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
    return Outer(SGD(momentum=momentum, nesterov=True), lr, keep, local)
