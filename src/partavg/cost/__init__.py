"""Traffic and time of an averaging plan on a network: which plan to choose before training.

docs/plan.md has the equations and how they were checked.
"""

from partavg.cost.network import BACKENDS, Network
from partavg.cost.plan import WIRES, Cost, Job, cost
from partavg.cost.recommend import Recommendation, plans, recommend
from partavg.cost.sizes import PARAMETERS

__all__ = [
    "BACKENDS",
    "PARAMETERS",
    "WIRES",
    "Cost",
    "Job",
    "Network",
    "Recommendation",
    "cost",
    "plans",
    "recommend",
]
