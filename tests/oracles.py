"""Slow textbook twins, in NumPy and float64, one worker at a time, in the paper's notation."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

Vector = np.ndarray
Gradient = Callable[[int, int, Vector], Vector]
"""g(i, k, x): the stochastic gradient of worker i at iteration k in x."""


def algorithm_1(
    x_0: Vector, g: Gradient, mu: float, tau: int, subsets: Sequence[Vector], m: int, K: int
) -> Iterator[list[Vector]]:
    """Local SGD with partial model averaging, line by line; yields x_k^i for all i."""
    x = [x_0.copy() for _ in range(m)]
    for k in range(1, K + 1):
        for i in range(m):
            x[i] = x[i] - mu * g(i, k, x[i])
        j = k % tau
        u_jk = sum(x[i][subsets[j]] for i in range(m)) / m
        for i in range(m):
            x[i][subsets[j]] = u_jk
        yield [x_i.copy() for x_i in x]


def periodic_averaging(
    x_0: Vector, g: Gradient, mu: float, tau: int, p: Vector, K: int
) -> Iterator[list[Vector]]:
    """Equation (2): average everything, with weights p, when k mod tau is 0."""
    m = len(p)
    x = [x_0.copy() for _ in range(m)]
    for k in range(1, K + 1):
        stepped = [x[i] - mu * g(i, k, x[i]) for i in range(m)]
        if k % tau == 0:
            u = sum(p[i] * stepped[i] for i in range(m))
            stepped = [u.copy() for _ in range(m)]
        x = stepped
        yield [x_i.copy() for x_i in x]


def averaging_matrix(j: int, k: int, tau: int, m: int, d_j: int) -> np.ndarray:
    """P_(j,k): J_j if k mod tau is j, else the identity."""
    if k % tau == j:
        return np.kron(np.ones((m, m)) / m, np.eye(d_j))
    return np.eye(m * d_j)


def discrepancy(x: Sequence[Vector]) -> float:
    """(1/m) Σ_i ‖u − x^i‖²."""
    u = sum(x) / len(x)
    return float(sum(np.sum((u - x_i) ** 2) for x_i in x) / len(x))
