"""FedNova: workers that take different numbers of steps count by direction, not by distance.

Wang, Liu, Liang, Joshi, Poor, Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization, 2020.
"""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import Abilities
from partavg.core.arguments import check_kind
from partavg.core.layout import Layout
from partavg.core.solver import State, Step, Sync
from partavg.solvers.drift import ANCHOR, anchored, check_base, mean_gradient
from partavg.solvers.sgd import SGD


@dataclass(frozen=True, slots=True)
class FedNova:
    """u_j = r_j − (Σ p_i a_i) Σ p_i d_i with d_i = (r_j − x_i) / a_i, for each part by itself.

    a_i is how far a gradient of 1 would have moved worker i since the part was last averaged, and r
    where the part was then. The mean direction is that of the workers that took a step. If all took
    the same steps it is plain averaging. a_i goes along once with a message, not with every column.
    """

    base: SGD = field(default_factory=SGD)

    def __post_init__(self) -> None:
        check_kind("base", self.base, SGD, "partavg.SGD(…)")

    @property
    def abilities(self) -> Abilities:
        """The base's; what counts is the direction from the last average."""
        check_base(self.base)
        return replace(
            self.base.abilities,
            plain=False,
            estimates_gradients=True,
            needs_last_average=True,
            tells=self.distances,
            only_for_unequal_steps=True,
        )

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """The base's memory, and r."""
        return {**self.base.init(params, layout), **anchored(params)}

    def step_(
        self, params: Float[Tensor, "m n"], grads: Float[Tensor, "m n"], state: State, now: Step
    ) -> None:
        """The base's step."""
        self.base.step_(params, grads, state, now)

    def encode(self, rows: Float[Tensor, "m n"], state: State, sync: Sync) -> Float[Tensor, "m l"]:
        """The direction, and what else the base sends."""
        direction = mean_gradient(state[ANCHOR] - rows, sync)
        return torch.cat([direction, self.base.encode(rows, state, sync)[:, rows.shape[1] :]], 1)

    def distances(self, sync: Sync) -> Float[Tensor, "m 2"]:
        """a_i of each worker, and 1 if it took a step."""
        return torch.cat([sync.lr_sum, (sync.lr_sum > 0).to(sync.lr_sum.dtype)], 1)

    def decode_(
        self, rows: Float[Tensor, "m n"], total: Float[Tensor, "l"], state: State, sync: Sync
    ) -> None:
        """Everybody goes the mean distance in the mean direction."""
        assert sync.told is not None
        width, (distance, moved) = rows.shape[1], sync.told
        mean = distance / moved.clamp(min=torch.finfo(moved.dtype).tiny)
        target = state[ANCHOR][0] - mean.to(total.dtype) * total[:width]
        self.base.decode_(rows, torch.cat([target, total[width:]]), state, sync)
        state[ANCHOR].copy_(rows[:1])
