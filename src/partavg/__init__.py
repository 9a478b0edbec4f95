"""Partial model averaging for federated learning and local SGD.

Start with `Simulation`, which trains copies of your model on shares of your data and averages
them as a `Schedule` says; see the README for an example.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partavg.backends.distributed import attach
    from partavg.backends.simulate import Discrepancy, Simulation
    from partavg.core.average import consensus
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
    from partavg.evaluation import Evaluation, evaluate
    from partavg.notebook import Table, follow, load_run
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
    "Table",
    "Vmapped",
    "Workers",
    "attach",
    "blocks",
    "by_channel",
    "by_layer",
    "consensus",
    "contiguous",
    "dirichlet",
    "evaluate",
    "follow",
    "iid",
    "load_dataset",
    "load_run",
    "train",
    "whole",
]

_HOMES = {
    "backends.distributed": "attach",
    "backends.simulate": "Discrepancy Simulation",
    "core.average": "consensus",
    "core.layout": "Layout",
    "core.loop": "Batch Engine Gradients Record train",
    "core.participation": "Participation",
    "core.partition": "PARTITIONS Partition Span blocks by_channel by_layer contiguous whole",
    "core.plan": "Plan",
    "core.rates": "Cosine StepDecay",
    "core.schedule": "Schedule",
    "core.solver": "Solver Step Sync",
    "core.workers": "Workers",
    "data": "load_dataset",
    "data.images": "Images",
    "data.split": "dirichlet iid",
    "engines.looped": "Looped",
    "engines.model": "RowModel",
    "engines.vmapped": "Vmapped",
    "evaluation": "Evaluation evaluate",
    "notebook": "Table follow load_run",
    "solvers.sgd": "SGD",
}
"""Where each public name lives: imported when it is first used, since torch takes seconds to import
and the command line answers most questions without it."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            value = getattr(import_module(f"partavg.{module}"), name)
            globals()[name] = value  # found at once from now on
            return value
    raise AttributeError(f"module 'partavg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
