"""What becomes of the workers' messages about a part, by name."""

from collections.abc import Callable
from typing import Any

from partavg.aggregates.coordinates import Median, Trimmed
from partavg.aggregates.distances import GeometricMedian, NormBound
from partavg.core.aggregate import weighted_sum
from partavg.registry import Names

__all__ = ["AGGREGATES", "GeometricMedian", "Median", "NormBound", "Trimmed"]

AGGREGATES: Names[Callable[..., Any]] = Names(
    "aggregate",
    {
        "geometric_median": GeometricMedian,
        "mean": weighted_sum,
        "median": Median,
        "norm_bound": NormBound,
        "trimmed": Trimmed,
    },
)
