"""What several solvers remember: where each parameter was when it was last averaged."""

import torch
from jaxtyping import Float
from torch import Tensor

ANCHOR = "anchor"


def anchored(params: Float[Tensor, "m d"]) -> dict[str, Float[Tensor, "1 d"]]:
    """The start, which all workers have in common."""
    return {ANCHOR: params[:1].clone()}


def divided(change: Float[Tensor, "m n"], gain: Float[Tensor, "m 1"]) -> Float[Tensor, "m n"]:
    """The mean gradient that made a change; 0 for a worker that took no step."""
    inverse = torch.where(gain > 0, 1 / gain, 0.0)
    return change * inverse.to(change.dtype)
