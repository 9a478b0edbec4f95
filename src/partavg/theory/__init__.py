"""The paper's theory: bounds, averaging matrices, and estimates of the constants."""

from partavg.theory.bounds import (
    Bound,
    Constants,
    Theorem,
    Theorem1,
    Theorem2,
    largest_interval,
)
from partavg.theory.estimate import Estimates, Spread, estimate
from partavg.theory.matrices import averaging_matrix, full_matrix

__all__ = [
    "Bound",
    "Constants",
    "Estimates",
    "Spread",
    "Theorem",
    "Theorem1",
    "Theorem2",
    "averaging_matrix",
    "estimate",
    "full_matrix",
    "largest_interval",
]
