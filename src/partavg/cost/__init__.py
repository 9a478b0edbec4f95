"""Traffic and time of an averaging plan on a network: which plan to choose before training.

docs/plan.md has the equations and how they were checked.
"""

import warnings
from typing import Any

from partavg.core.wire_formats import WIRE_FORMATS
from partavg.cost.iteration import Cost, Workload, cost
from partavg.cost.network import BACKENDS, Network
from partavg.cost.recommend import Recommendation, candidates, recommend
from partavg.cost.sizes import PARAMETERS

__all__ = [
    "BACKENDS",
    "PARAMETERS",
    "Cost",
    "Network",
    "Recommendation",
    "Workload",
    "candidates",
    "cost",
    "recommend",
]


def _job(parameters: int, step: float, width: float = 4.0) -> Workload:
    """A Workload as 0.1 made it."""
    return Workload(parameters, step, width)


def __getattr__(name: str) -> Any:
    """The names of 0.1, which go with 0.3."""
    old: dict[str, tuple[str, Any]] = {
        "Job": ("Workload", _job),
        "plans": ("candidates", candidates),
        "WIRES": (
            "partavg.core.wire_formats.WIRE_FORMATS",
            {wire: form.bytes_per_number for wire, form in WIRE_FORMATS.items()},
        ),
    }
    if name not in old:
        raise AttributeError(f"module 'partavg.cost' has no attribute {name!r}")
    new, value = old[name]
    said = f"partavg.cost.{name} is called {new} now; the old name goes with 0.3"
    warnings.warn(said, DeprecationWarning, stacklevel=2)
    return value
