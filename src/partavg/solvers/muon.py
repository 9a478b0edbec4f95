"""Muon: hidden matrices move along orthogonal ones, everything else by AdamW.

Jordan, Jin, Boza, You, Cesista, Newhouse, Bernstein, Muon: An optimizer for hidden layers in neural
networks, 2024; Liu et al., Muon is Scalable for LLM Training, 2025, for `match_rms_adamw`.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.abilities import Abilities
from partavg.core.arguments import check_choice, check_flag, check_number, check_whole
from partavg.core.layout import Layout
from partavg.core.local_columns import matches
from partavg.core.partition import Span, merged
from partavg.core.solver import State, Step, Sync
from partavg.sentences import shown
from partavg.solvers.adam import Adam

AdjustLR = Literal["match_rms_adamw", "original"]

NOT_HIDDEN: tuple[str, ...] = (
    *("*embed*", "*position*", "wte.*", "*.wte.*", "wpe.*", "*.wpe.*"),
    *("head.*", "*.head.*", "*lm_head*", "*classifier*"),
)
"""What embeddings and heads are called in most models, as patterns of parameters' names."""

_A, _B, _C = 3.4445, -4.7750, 2.0315  # the paper's quintic


@dataclass(frozen=True, slots=True)
class Muon:
    """m ← ρm + (1 − ρ)g;  x ← x − ηλx − ηs NS(m)  (Nesterov: NS(ρm + (1 − ρ)g)), as torch.optim's.

    NS makes all singular values about 1 by `steps` of Newton and Schulz, s fits the rate to a
    matrix of A rows and B columns: 0.2 √max(A, B), "match_rms_adamw", so that one rate serves both,
    or √max(1, A/B), the "original". A hidden matrix is a tensor of two axes whose name no pattern
    of `adamw` matches: name embeddings and the head there. All else is AdamW's, with rate
    `adamw_rate` · η and the same decay. Both memories stay local when a part is averaged.
    Newton-Schulz is computed in the parameters' type, or in `bfloat16`, as torch does.

    >>> Muon(weight_decay=0.0, adamw=("tokens.*", "out.*")).momentum
    0.95
    """

    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1
    steps: int = 5
    eps: float = 1e-7
    adjust_lr: AdjustLR = "match_rms_adamw"
    bfloat16: bool = False
    adamw: tuple[str, ...] = NOT_HIDDEN
    adamw_rate: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.95
    adamw_eps: float = 1e-8
    abilities: ClassVar[Abilities] = Abilities(plain=True, whole_tensors=True)

    def __post_init__(self) -> None:
        for name in ("momentum", "weight_decay", "eps", "adamw_rate"):
            check_number(name, getattr(self, name))
        for name in ("nesterov", "bfloat16"):
            check_flag(name, getattr(self, name))
        check_whole("steps", self.steps, 1)
        check_choice("adjust_lr", self.adjust_lr, get_args(AdjustLR))
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum {self.momentum} is outside [0, 1): 0.95 is usual")
        if not self.eps > 0:
            raise ValueError(f"eps {self.eps} is not above 0: it keeps steps finite")
        if not self.adamw_rate > 0:
            raise ValueError(f"adamw_rate {self.adamw_rate} is not above 0: 1 is the same rate")
        listed = isinstance(self.adamw, tuple | list)
        if not listed or not all(isinstance(pattern, str) for pattern in self.adamw):
            raise ValueError(
                f"adamw {shown(self.adamw)} are no patterns of names: give some, like "
                f'("*embed*", "head.*")'
            )
        object.__setattr__(self, "adamw", tuple(self.adamw))
        _ = self._others

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """No moments yet."""
        matrices = any(len(shape) == 2 for shape in layout.shapes)
        if matrices and not _sorted(layout, self.adamw).matrices:
            raise ValueError(
                f"adamw {list(self.adamw)} matches all matrices of the model, and leaves none to "
                f"Muon: use fewer patterns, or the solver adamw"
            )
        return self._others.init(params, layout)

    def step_(
        self, params: Float[Tensor, "m n"], grads: Float[Tensor, "m n"], state: State, now: Step
    ) -> None:
        """One step on every row."""
        if now.layout is None:
            raise ValueError("Muon must see whole tensors: give their layout with the step")
        found = _sorted(now.layout, self.adamw)
        others, rate = self._others, now._replace(lr=now.lr * self.adamw_rate)
        for a, b in found.others:
            memory = {name: entry[:, a:b] for name, entry in state.items()}
            others.step_(params[:, a:b], grads[:, a:b], memory, rate)
        for shape, spans in found.matrices.items():
            steepest = [
                self._momentum(grads[:, a:b], state["mean"][:, a:b]).reshape(-1, *shape)
                for a, b in spans
            ]
            # All workers' matrices of a shape at once.
            moves = self._orthogonal(torch.stack(steepest)).flatten(2)
            for (a, b), move in zip(spans, moves, strict=True):
                rows = params[:, a:b].mul_(1 - now.lr * self.weight_decay)
                rows.add_(move, alpha=-now.lr * self._adjusted(shape))

    def encode(self, rows: Float[Tensor, "m n"], state: State, sync: Sync) -> Float[Tensor, "m l"]:
        """The parameters themselves."""
        return rows

    def decode_(
        self, rows: Float[Tensor, "m n"], total: Float[Tensor, "l"], state: State, sync: Sync
    ) -> None:
        """Every worker takes the mean."""
        rows.copy_(total)

    @property
    def _others(self) -> Adam:
        decay = self.weight_decay
        return Adam(self.beta1, self.beta2, self.adamw_eps, decay, decoupled=True)

    def _momentum(
        self, grads: Float[Tensor, "m n"], mean: Float[Tensor, "m n"]
    ) -> Float[Tensor, "m n"]:
        """Where momentum points; the gradients are used up."""
        mean.lerp_(grads, 1 - self.momentum)
        return grads.lerp_(mean, self.momentum) if self.nesterov else mean

    def _orthogonal(self, matrices: Float[Tensor, "t m a b"]) -> Float[Tensor, "t m a b"]:
        """Their singular values made about 1, from 0.7 to 1.2."""
        tall = matrices.shape[2] > matrices.shape[3]
        x = (matrices.mT if tall else matrices).flatten(0, 1)
        x = x.to(torch.bfloat16 if self.bfloat16 else x.dtype)
        x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=self.eps)
        for _ in range(self.steps):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
        return (x.mT if tall else x).to(matrices.dtype).reshape(matrices.shape)

    def _adjusted(self, shape: tuple[int, ...]) -> float:
        rows, columns = shape
        if self.adjust_lr == "original":
            return sqrt(max(1.0, rows / columns))
        return 0.2 * sqrt(max(rows, columns))


class _Sorted(NamedTuple):
    """The columns of a layout by who steps them."""

    matrices: dict[tuple[int, ...], list[Span]]
    """By shape."""
    others: tuple[Span, ...]


@lru_cache(maxsize=64)
def _sorted(layout: Layout, patterns: tuple[str, ...]) -> _Sorted:
    matrices: dict[tuple[int, ...], list[Span]] = defaultdict(list)
    others: list[Span] = []
    for name, shape, start, size in zip(
        layout.names, layout.shapes, layout.starts, layout.sizes, strict=True
    ):
        if not size:
            continue
        hidden = len(shape) == 2 and not matches(name, patterns)
        (matrices[tuple(shape)] if hidden else others).append(Span(start, start + size))
    return _Sorted(dict(matrices), merged(others))
