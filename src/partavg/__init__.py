"""Partial model averaging for federated learning and local SGD.

Start with `Simulation`, which trains copies of your model on shares of your data and averages
them as a `Schedule` says; see the README for an example.
"""

from partavg.backends.distributed import attach
from partavg.backends.simulate import Discrepancy, Simulation
from partavg.core.average import consensus, discrepancy, per_part
from partavg.core.layout import Layout
from partavg.core.loop import Batch, Engine, Gradients, Record, train
from partavg.core.participation import Participation
from partavg.core.partition import (
    PARTITIONS,
    Partition,
    Span,
    blocks,
    by_channel,
    by_layer,
    contiguous,
    whole,
)
from partavg.core.plan import Plan
from partavg.core.rates import Cosine, StepDecay
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver, Step, Sync
from partavg.core.workers import Workers
from partavg.data import load_dataset
from partavg.data.images import Images
from partavg.data.split import dirichlet, iid
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.engines.vmapped import Vmapped
from partavg.evaluate import Evaluation, evaluate
from partavg.solvers.sgd import SGD

__all__ = [
    "PARTITIONS",
    "SGD",
    "Batch",
    "Cosine",
    "Discrepancy",
    "Engine",
    "Evaluation",
    "Gradients",
    "Images",
    "Layout",
    "Looped",
    "Participation",
    "Partition",
    "Plan",
    "Record",
    "RowModel",
    "Schedule",
    "Simulation",
    "Solver",
    "Span",
    "Step",
    "StepDecay",
    "Sync",
    "Vmapped",
    "Workers",
    "attach",
    "blocks",
    "by_channel",
    "by_layer",
    "consensus",
    "contiguous",
    "dirichlet",
    "discrepancy",
    "evaluate",
    "iid",
    "load_dataset",
    "per_part",
    "train",
    "whole",
]
