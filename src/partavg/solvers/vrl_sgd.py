"""VRL-SGD: each worker learns how its gradient differs from all workers', and leaves that out.

Liang, Shen, Liu, Pan, Chen, Cheng, Variance Reduced Local SGD with Lower Communication Complexity,
2019.
"""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import Abilities
from partavg.core.arguments import check_kind
from partavg.core.layout import Layout
from partavg.core.solver import State, Step, Sync
from partavg.solvers.drift import corrected_step_, correcting, mean_gradient
from partavg.solvers.sgd import SGD


@dataclass(frozen=True, slots=True)
class VRLSGD:
    """g ← g − Δ_i; when part j is averaged Δ_i ← Δ_i + (u_j − x_i) / h_i, and Σ p_i Δ_i stays 0.

    h_i is the sum of the learning rates since the part was last averaged, each as far as the base's
    momentum carries it: the paper has plain SGD with one rate, where h_i is k γ.
    """

    base: SGD = field(default_factory=SGD)

    def __post_init__(self) -> None:
        check_kind("base", self.base, SGD, "partavg.SGD(…)")

    @property
    def abilities(self) -> Abilities:
        """Those of solvers that correct steps; with unequal ones deviations would not cancel."""
        return replace(correcting(self.base, "deviation"), needs_equal_steps=True)

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """No worker differs yet."""
        return {**self.base.init(params, layout), "deviation": torch.zeros_like(params)}

    def step_(
        self, params: Float[Tensor, "m n"], grads: Float[Tensor, "m n"], state: State, now: Step
    ) -> None:
        """One step along the gradient without the worker's own deviation."""
        corrected_step_(self.base, params, grads, state, now, less=state["deviation"])

    def encode(self, rows: Float[Tensor, "m n"], state: State, sync: Sync) -> Float[Tensor, "m l"]:
        """What the base sends."""
        return self.base.encode(rows, state, sync)

    def decode_(
        self, rows: Float[Tensor, "m n"], total: Float[Tensor, "l"], state: State, sync: Sync
    ) -> None:
        """Learn from the distance to the mean, then take the mean."""
        away = total[: rows.shape[1]] - rows
        state["deviation"].add_(mean_gradient(away, sync))
        self.base.decode_(rows, total, state, sync)
