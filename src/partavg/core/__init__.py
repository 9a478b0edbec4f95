"""Tensors only: layouts, partitions, schedules, solvers' protocol, averaging and the loop.

For authors of training loops and engines; what users build with is in `partavg` itself.
"""

from partavg.core.aggregate import weighted_sum
from partavg.core.average import consensus
from partavg.core.cuts import PARTITIONS
from partavg.core.loop import Batch, Engine, Gradients, train
from partavg.core.plan import Plan
from partavg.core.reduce import Reduce
from partavg.core.workers import Workers

__all__ = [
    "PARTITIONS",
    "Batch",
    "Engine",
    "Gradients",
    "Plan",
    "Reduce",
    "Workers",
    "consensus",
    "train",
    "weighted_sum",
]
