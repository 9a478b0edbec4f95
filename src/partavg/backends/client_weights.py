"""How much each client counts."""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.arguments import check_number
from partavg.core.participation import Participation
from partavg.sentences import shown

WeightsPolicy = Literal["uniform", "samples"]
Weights = WeightsPolicy | Sequence[float] | Tensor
"""p_i by a policy, or a number per client; they need not sum to 1."""


def client_weights(
    policy: Any, split: Sequence[Tensor], cap: float | None = None
) -> Float[Tensor, "m"]:
    """p_i of all clients: by a policy, or in proportion to a number for each, capped.

    >>> client_weights([3, 1], [torch.arange(5), torch.arange(5)])
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    if isinstance(policy, str) and policy in get_args(WeightsPolicy):
        counts = torch.tensor([len(samples) for samples in split], dtype=torch.float64)
        weights = counts if policy == "samples" else torch.ones_like(counts)
    else:
        weights = _listed_weights(policy, len(split))
    weights = capped(weights, cap)
    return weights / weights.sum()


def capped(weights: Float[Tensor, "m"], cap: float | None) -> Float[Tensor, "m"]:
    """Weights of which none is more than `cap` times the median of those above 0.

    Of an even number of weights that is the lower median: half of the clients cannot move it up.

    >>> capped(torch.tensor([10.0, 20.0, 30.0, 1e7]), 2)
    tensor([10., 20., 30., 40.])
    """
    check_cap(cap)
    if cap is None or not weights.any():
        return weights
    return weights.clamp(max=cap * float(weights[weights > 0].median()))


def check_cap(cap: float | None, called: str = "max_weight") -> None:
    """Raise a ValueError for a cap that would cut the median itself."""
    if cap is None:
        return
    check_number(called, cap)
    if not 1 <= cap < math.inf:
        raise ValueError(
            f"{called} {cap} is how many times the median weight a client may count: use 1 or "
            f"more, or leave it out"
        )


def _listed_weights(given: Any, clients: int) -> Float[Tensor, "m"]:
    """A number for each client, checked."""
    known = " or ".join(get_args(WeightsPolicy))
    if isinstance(given, str) or not hasattr(given, "__len__"):
        raise ValueError(
            f"weights {shown(given)} is not known: use {known}, or a number per client"
        )
    try:
        weights = torch.as_tensor(given, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"weights {shown(given)} are no numbers: give one per client") from None
    if weights.shape != (clients,):
        raise ValueError(
            f"weights of shape {list(weights.shape)} are not for {clients} clients: give a number "
            f"for each"
        )
    wrong = ~(weights.isfinite() & (weights >= 0))
    if wrong.any():
        client = int(wrong.nonzero()[0])
        raise ValueError(
            f"the weight of client {client} is {float(weights[client])}: give numbers from 0"
        )
    if not weights.any():
        raise ValueError("all weights are 0: give at least one client more")
    return weights / weights.max() if weights.sum().isinf() else weights


def check_drawn_weights(weights: Float[Tensor, "m"], participation: Participation | None) -> None:
    """Raise a ValueError if all clients of a draw could weigh nothing."""
    idle = int((weights == 0).sum())
    if participation and idle >= participation.active:
        raise ValueError(
            f"{idle} clients have weight 0, so that none of {participation.active} active ones may "
            f"count: give weights above 0 with participation"
        )
