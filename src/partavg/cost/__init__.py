"""Traffic and time of an averaging plan on a network: which plan to choose before training.

docs/plan.md has the equations and how they were checked.
"""

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
