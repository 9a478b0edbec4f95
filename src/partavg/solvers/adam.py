"""Adam and AdamW as local solvers.

Kingma, Ba, Adam: A Method for Stochastic Optimization, 2015; Loshchilov, Hutter, Decoupled Weight
Decay Regularization, 2019.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import Abilities
from partavg.core.arguments import check_number
from partavg.core.layout import Layout
from partavg.core.solver import State, Step, Sync
from partavg.kernels.backend import uses_triton


@dataclass(frozen=True, slots=True)
class Adam:
    """m ← β₁m + (1 − β₁)g;  v ← β₂v + (1 − β₂)g²;  x ← x − η m̂ / (√v̂ + ε), as in torch.optim.Adam.

    m̂ and v̂ are divided by 1 − β^t after t local steps. Both stay local when a part is averaged.
    Weight decay is added to the gradient; `decoupled` (AdamW) shrinks x by ηλ instead. Without
    `bias_correction` m and v are taken as they are, and v begins as ε²: so does FedAdam's.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    bias_correction: bool = True
    abilities: ClassVar[Abilities] = Abilities(plain=True)

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2", "eps", "weight_decay"):
            check_number(name, getattr(self, name))
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is outside [0, 1): 0.9 is usual")
        if not self.eps > 0:
            raise ValueError(f"eps {self.eps} is not above 0: it keeps steps finite")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay {self.weight_decay} is negative: use 0 for none")

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """No moments yet."""
        first = 0.0 if self.bias_correction else self.eps**2
        return {"mean": torch.zeros_like(params), "square": torch.full_like(params, first)}

    def step_(
        self, params: Float[Tensor, "m n"], grads: Float[Tensor, "m n"], state: State, now: Step
    ) -> None:
        """One step on every row."""
        past = now.taken if self.bias_correction else torch.full_like(now.taken, torch.inf)
        first, second = (1 - beta**past for beta in (self.beta1, self.beta2))
        if params.dtype == torch.float32 and uses_triton(params):
            from partavg.kernels import adam

            scales = torch.cat([now.lr / first, second.rsqrt()], 1).T.float().contiguous()
            adam.step_(
                params,
                grads,
                state["mean"],
                state["square"],
                scales,
                shrink=1 - now.lr * self.weight_decay if self.decoupled else 1.0,
                decay=0.0 if self.decoupled else self.weight_decay,
                beta1=self.beta1,
                beta2=self.beta2,
                eps=self.eps,
            )
            return
        if self.decoupled:
            params.mul_(1 - now.lr * self.weight_decay)
        elif self.weight_decay:
            grads.add_(params, alpha=self.weight_decay)
        mean = state["mean"].lerp_(grads, 1 - self.beta1)
        square = state["square"].mul_(self.beta2).addcmul_(grads, grads, value=1 - self.beta2)
        # (1 − β₁^t)(√v̂ + ε), in the memory of the gradient that is used up
        scale = torch.sqrt(square, out=grads)
        factor, least = ((first * x).to(grads.dtype) for x in (second.rsqrt(), self.eps))
        torch.addcmul(least, scale, factor, out=scale)
        params.addcdiv_(mean, scale, value=-now.lr)

    def encode(self, rows: Float[Tensor, "m n"], state: State, sync: Sync) -> Float[Tensor, "m l"]:
        """The parameters themselves."""
        return rows

    def decode_(
        self, rows: Float[Tensor, "m n"], total: Float[Tensor, "l"], state: State, sync: Sync
    ) -> None:
        """Every worker takes the mean."""
        rows.copy_(total)


def adam(
    *, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0
) -> Adam:
    """Adam, weight decay added to the gradient."""
    return Adam(beta1, beta2, eps, weight_decay)


def adamw(
    *, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01
) -> Adam:
    """Adam with decoupled weight decay."""
    return Adam(beta1, beta2, eps, weight_decay, decoupled=True)
