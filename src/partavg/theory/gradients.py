"""How noisy the workers' gradients are at a point, and how much they differ, part by part."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.loop import Batch, Engine


class Sweep(NamedTuple):
    """What some mini-batches of every worker say about the gradients at one point."""

    loss: float
    """Σ_i p_i F_i."""
    variance: Float[Tensor, "m p"]
    """E‖g_ij − ∇_j F_i‖² of each worker and part."""
    local: Float[Tensor, "p"]
    """Σ_i p_i ‖∇_j F_i‖²."""
    joint: Float[Tensor, "p"]
    """‖∇_j F‖²: without bias, and therefore perhaps below 0 where it is small."""


def sweep(
    engine: Engine,
    point: tuple[Float[Tensor, "d"], Float[Tensor, "b"]],
    batches: Iterable[Batch],
    *,
    weights: Float[Tensor, "m"],
    owners: Int[Tensor, "d"],
) -> Sweep:
    """Take the gradients of at least two independent mini-batches of every worker at a point.

    Mean and variance are updated batch by batch (Welford), so that memory holds one gradient of
    every worker, whatever the number of batches.
    """
    params, buffers = (row.expand(len(weights), -1) for row in point)
    parts = int(owners.max()) + 1
    mean = torch.zeros_like(params)
    squares = torch.zeros(len(weights), parts, dtype=torch.float64, device=params.device)
    loss, count = 0.0, 0
    for batch in batches:
        count += 1
        for rows, losses, pieces in engine(params, buffers.clone(), batch):
            loss += float(weights[rows] @ losses)
            for columns, grads in pieces:
                away = grads - mean[rows, columns]
                mean[rows, columns] += away / count
                products = (away * (grads - mean[rows, columns])).double()
                squares[rows].index_add_(1, owners[columns], products)
    variance = squares / (count - 1)
    p = weights.double()
    # The mean over `count` batches still has 1/count of the variance: E‖ḡ‖² = ‖∇F‖² + σ²/count.
    local = p @ (_per_part(mean.double().square(), owners, parts) - variance / count)
    joint = _per_part((p[None] @ mean.double()).square(), owners, parts)[0]
    return Sweep(loss / count, variance, local, joint - p.square() @ variance / count)


def _per_part(values: Tensor, owners: Tensor, parts: int) -> Tensor:
    """Sums over the columns of each part, row by row."""
    return values.new_zeros(len(values), parts).index_add_(1, owners, values)
