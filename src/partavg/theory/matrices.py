"""Averaging as the appendix writes it: matrices on the stacked columns of one part.

x_(j,k) stacks part j of all m workers, worker after worker, into a vector of m·d_j numbers. One
iteration is x_(j,k) = P_(j,k) (x_(j,k−1) − η g_(j,k−1)). The matrices have (m·d_j)² entries: they
are for proofs, teaching and tests.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.schedule import Schedule


def full_matrix(workers: int, columns: int) -> Float[Tensor, "n n"]:
    """J_j = (1/m) 1 1ᵀ ⊗ I: every worker gets the mean of all.

    >>> full_matrix(workers=2, columns=1)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    if workers < 1 or columns < 1:
        raise ValueError(f"{workers} workers with {columns} columns: there must be one of each")
    mean = torch.full((workers, workers), 1 / workers, dtype=torch.float64)
    return torch.kron(mean, torch.eye(columns, dtype=torch.float64))


def averaging_matrix(
    schedule: Schedule, part: int, step: int, *, workers: int, columns: int
) -> Float[Tensor, "n n"]:
    """P_(j,k): J_j if part j is due after step k, else the identity.

    Rows sum to 1, J P = J, and products of P's of one part are symmetric.

    >>> partial = Schedule.partial(2)
    >>> averaging_matrix(partial, part=1, step=1, workers=2, columns=1)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    >>> averaging_matrix(partial, part=0, step=1, workers=2, columns=1)
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    if not 0 <= part < schedule.parts:
        raise ValueError(f"part {part} of {schedule.parts}: count them from 0")
    if part in schedule(step):
        return full_matrix(workers, columns)
    return torch.eye(workers * columns, dtype=torch.float64)
