"""Stochastic gradient descent with momentum.

Robbins and Monro, A Stochastic Approximation Method, 1951; Polyak, 1964; Nesterov, 1983.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import Abilities
from partavg.core.layout import Layout
from partavg.core.solver import State, Step, Sync
from partavg.kernels.backend import uses_triton
from partavg.sentences import real_number

Decay = Literal["all", "kernels"]
MomentumAtAveraging = Literal["local", "averaged", "reset"]


@dataclass(frozen=True, slots=True)
class SGD:
    """v ← ρv + g + λx;  x ← x − ηv  (Nesterov: x ← x − η(g + λx + ρv)), as in torch.optim.SGD.

    `decay` puts weight decay on all tensors or on kernels (those with two axes or more) only.
    `momentum_at_averaging` says what becomes of a part's momentum when the part is averaged: it
    stays local, is averaged too (twice the traffic), or starts again from zero.

    >>> SGD(momentum=0.9, weight_decay=1e-4)
    SGD(momentum=0.9, nesterov=False, weight_decay=0.0001, decay='all', \
momentum_at_averaging='local')
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    decay: Decay = "all"
    momentum_at_averaging: MomentumAtAveraging = "local"

    def __post_init__(self) -> None:
        real_number(self.momentum, "momentum")
        real_number(self.weight_decay, "weight_decay")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum {self.momentum} is outside [0, 1): 0.9 is usual")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum: set momentum, or nesterov = false")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay {self.weight_decay} is negative: use 0 for none")
        _check_choice("decay", self.decay, get_args(Decay))
        _check_choice(
            "momentum_at_averaging", self.momentum_at_averaging, get_args(MomentumAtAveraging)
        )

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """Zero momentum, and the columns that decay where not all do."""
        state: State = {}
        if self.momentum:
            state["momentum"] = torch.zeros_like(params)
        if self.weight_decay and self.decay == "kernels":
            mask = torch.zeros(1, layout.size, dtype=params.dtype)
            for view, shape in zip(layout.views(mask).values(), layout.shapes, strict=True):
                view.fill_(len(shape) >= 2)
            state["decays"] = mask.to(params.device)
        return state

    def step_(
        self,
        params: Float[Tensor, "m n"],
        grads: Float[Tensor, "m n"],
        state: State,
        now: Step,
    ) -> None:
        """One step of gradient descent on every row."""
        if "decays" not in state and params.dtype == torch.float32 and uses_triton(params):
            from partavg.kernels import sgd

            sgd.step_(
                params,
                grads,
                state.get("momentum"),
                lr=now.lr,
                momentum=self.momentum,
                decay=self.weight_decay,
                nesterov=self.nesterov,
            )
            return
        if "decays" in state:
            grads.addcmul_(params, state["decays"], value=self.weight_decay)
        elif self.weight_decay:
            grads.add_(params, alpha=self.weight_decay)
        direction = grads
        if self.momentum:
            velocity = state["momentum"]
            torch.add(grads, velocity, alpha=self.momentum, out=velocity)
            direction = grads.add_(velocity, alpha=self.momentum) if self.nesterov else velocity
        params.add_(direction, alpha=-now.lr)

    def encode(self, rows: Float[Tensor, "m n"], state: State, sync: Sync) -> Float[Tensor, "m l"]:
        """The parameters themselves, and the momentum if it is to be averaged."""
        return torch.cat([rows, state["momentum"]], 1) if self._averages_momentum else rows

    def decode_(
        self,
        rows: Float[Tensor, "m n"],
        total: Float[Tensor, "l"],
        state: State,
        sync: Sync,
    ) -> None:
        """Every worker takes the mean."""
        rows.copy_(total[: rows.shape[1]])
        if self._averages_momentum:
            state["momentum"].copy_(total[rows.shape[1] :])
        elif self.momentum and self.momentum_at_averaging == "reset":
            state["momentum"].zero_()

    def weight(self, age: Float[Tensor, "m 1"]) -> Float[Tensor, "m 1"]:
        """How far a gradient that was always 1 moves a worker in its `age`-th step from rest.

        In learning rates: (1 − ρ^age) / (1 − ρ), and for Nesterov 1 + ρ times that.
        """
        inertia = (1 - self.momentum**age) / (1 - self.momentum)
        return 1 + self.momentum * inertia if self.nesterov else inertia

    def step_weight(
        self, steps: Float[Tensor, "m p"], taken: Float[Tensor, "m 1"]
    ) -> Float[Tensor, "m _"]:
        """The weight of the last step: momentum is as old as training, or as the last averaging."""
        return self.weight(taken if self.momentum_at_averaging == "local" else steps)

    @property
    def abilities(self) -> Abilities:
        """Plain, unless something becomes of the momentum when a part is averaged."""
        local = not self.momentum or self.momentum_at_averaging == "local"
        masked = self.weight_decay and self.decay == "kernels"
        return Abilities(
            plain=local,
            constant=("decays",) if masked else (),
            step_weight=self.step_weight if self.momentum else None,
        )

    @property
    def _averages_momentum(self) -> bool:
        return self.momentum > 0 and self.momentum_at_averaging == "averaged"


def _check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{field} {value!r} is not known: use {' or '.join(choices)}")
