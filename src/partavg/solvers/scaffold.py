"""SCAFFOLD, option II: controls of each client and of all correct the drift of local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, 2020.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import Abilities
from partavg.core.arguments import check_kind
from partavg.core.layout import Layout
from partavg.core.solver import State, Step, Sync
from partavg.solvers.drift import ANCHOR, anchored, corrected_step_, correcting, mean_gradient
from partavg.solvers.sgd import SGD


@dataclass(frozen=True, slots=True)
class SCAFFOLD:
    """g ← g − c_i + c; when part j is averaged c_i⁺ = c_i − c + (r_j − x_i) / h_i for its columns.

    Then c ← c + (active share) Σ p_i (c_i⁺ − c_i). Messages are twice as long. r is each part's
    value at its last averaging, h_i the sum of the learning rates since then, each as far as the
    base's momentum carries it: the paper has plain SGD with one rate, where h_i is K η.
    """

    base: SGD = field(default_factory=SGD)

    def __post_init__(self) -> None:
        check_kind("base", self.base, SGD, "partavg.SGD(…)")

    @property
    def abilities(self) -> Abilities:
        """Those of solvers that correct steps; the controls belong to clients."""
        return correcting(self.base, "control", "common")

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """No control yet."""
        zeros = torch.zeros_like(params)
        own = {"control": zeros, "common": zeros[:1].clone(), **anchored(params)}
        return {**self.base.init(params, layout), **own}

    def step_(
        self, params: Float[Tensor, "m n"], grads: Float[Tensor, "m n"], state: State, now: Step
    ) -> None:
        """One step along the corrected gradient."""
        control, common = state["control"], state["common"]
        corrected_step_(self.base, params, grads, state, now, less=control, more=common)

    def encode(self, rows: Float[Tensor, "m n"], state: State, sync: Sync) -> Float[Tensor, "m l"]:
        """What the base sends, and how the control changes."""
        return torch.cat([self.base.encode(rows, state, sync), self._change(rows, state, sync)], 1)

    def decode_(
        self, rows: Float[Tensor, "m n"], total: Float[Tensor, "l"], state: State, sync: Sync
    ) -> None:
        """Change the controls, then take the mean."""
        width = rows.shape[1]
        state["control"].add_(self._change(rows, state, sync))
        state["common"].add_(total[-width:], alpha=sync.active_fraction)
        self.base.decode_(rows, total[:-width], state, sync)
        state[ANCHOR].copy_(rows[:1])

    def _change(self, rows: Float[Tensor, "m n"], state: State, sync: Sync) -> Float[Tensor, "m n"]:
        """c_i⁺ − c_i; nothing for a worker that took no step."""
        estimate = mean_gradient(state[ANCHOR] - rows, sync)
        return estimate.sub_(state["common"] * (sync.lr_sum > 0))
