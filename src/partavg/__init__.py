"""Partial model averaging for federated learning and local SGD.

Start with `Simulation`, which trains copies of your model on shares of your data and averages
them as a `Schedule` says; see the README for an example. What only authors of training loops and
engines need is in `partavg.core` and `partavg.engines`.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from partavg.waiting_threads import wait_briefly as _wait_briefly

_wait_briefly()  # before torch is imported

if TYPE_CHECKING:
    import partavg.aggregates as aggregates  # noqa: F401
    import partavg.attacks as attacks  # noqa: F401
    import partavg.metrics as metrics  # noqa: F401
    from partavg.api import compare, follow, run
    from partavg.backends.distributed import attach
    from partavg.backends.simulate import Discrepancy, Simulation
    from partavg.best import Patience
    from partavg.core.abilities import Abilities, abilities
    from partavg.core.adapt import AdaComm, FedLAMA, PostLocal
    from partavg.core.aggregate import About, Aggregate
    from partavg.core.cuts import (
        blocks,
        by_channel,
        by_layer,
        by_name,
        contiguous,
        sequential,
        strided,
        whole,
    )
    from partavg.core.layout import Layout
    from partavg.core.loop import Record
    from partavg.core.participation import Participation
    from partavg.core.partition import Partition, Span
    from partavg.core.rates import Cosine, StepDecay
    from partavg.core.schedule import Schedule
    from partavg.core.solver import Solver, Step, Sync
    from partavg.data import load_dataset
    from partavg.data.clients import by_client
    from partavg.data.convert import as_samples
    from partavg.data.dataset import Dataset
    from partavg.data.images import Images
    from partavg.data.samples import Samples
    from partavg.data.split import by_label, by_quantity, dirichlet, iid, shards
    from partavg.data.test_split import split_alike, split_by_owner
    from partavg.evaluation import Evaluation, evaluate
    from partavg.metrics.metric import Metric
    from partavg.metrics.moment import Moment
    from partavg.notebook import Comparison, Results, Table, load_run
    from partavg.privacy.accountant import noise_for
    from partavg.privacy.settings import Privacy
    from partavg.registry import register
    from partavg.session import Diverged
    from partavg.sinks.sink import RunInfo, Sink
    from partavg.solvers.adam import adam, adamw
    from partavg.solvers.fednova import FedNova
    from partavg.solvers.fedprox import FedProx
    from partavg.solvers.muloco import muloco
    from partavg.solvers.muon import Muon
    from partavg.solvers.outer import Outer, diloco, fedadam, fedavgm
    from partavg.solvers.scaffold import SCAFFOLD
    from partavg.solvers.sgd import SGD
    from partavg.solvers.vrl_sgd import VRLSGD
    from partavg.swept import Swept, sweep

__all__ = [
    "SCAFFOLD",
    "SGD",
    "VRLSGD",
    "Abilities",
    "About",
    "AdaComm",
    "Aggregate",
    "Comparison",
    "Cosine",
    "Dataset",
    "Discrepancy",
    "Diverged",
    "Evaluation",
    "FedLAMA",
    "FedNova",
    "FedProx",
    "Images",
    "Layout",
    "Metric",
    "Moment",
    "Muon",
    "Outer",
    "Participation",
    "Partition",
    "Patience",
    "PostLocal",
    "Privacy",
    "Record",
    "Results",
    "RunInfo",
    "Samples",
    "Schedule",
    "Simulation",
    "Sink",
    "Solver",
    "Span",
    "Step",
    "StepDecay",
    "Swept",
    "Sync",
    "Table",
    "abilities",
    "adam",
    "adamw",
    "as_samples",
    "attach",
    "blocks",
    "by_channel",
    "by_client",
    "by_label",
    "by_layer",
    "by_name",
    "by_quantity",
    "compare",
    "contiguous",
    "diloco",
    "dirichlet",
    "evaluate",
    "fedadam",
    "fedavgm",
    "follow",
    "iid",
    "load_dataset",
    "load_run",
    "muloco",
    "noise_for",
    "register",
    "run",
    "sequential",
    "shards",
    "split_alike",
    "split_by_owner",
    "strided",
    "sweep",
    "whole",
]

_HOMES = {
    "api": "compare follow run",
    "backends.distributed": "attach",
    "backends.simulate": "Discrepancy Simulation",
    "best": "Patience",
    "core.abilities": "Abilities abilities",
    "core.adapt": "AdaComm FedLAMA PostLocal",
    "core.aggregate": "About Aggregate",
    "core.cuts": "blocks by_channel by_layer by_name contiguous sequential strided whole",
    "core.layout": "Layout",
    "core.loop": "Record",
    "core.participation": "Participation",
    "core.partition": "Partition Span",
    "core.rates": "Cosine StepDecay",
    "core.schedule": "Schedule",
    "core.solver": "Solver Step Sync",
    "data": "load_dataset",
    "data.clients": "by_client",
    "data.convert": "as_samples",
    "data.dataset": "Dataset",
    "data.images": "Images",
    "data.samples": "Samples",
    "data.split": "by_label by_quantity dirichlet iid shards",
    "data.test_split": "split_alike split_by_owner",
    "evaluation": "Evaluation evaluate",
    "metrics.moment": "Moment",
    "metrics.metric": "Metric",
    "notebook": "Comparison Results Table load_run",
    "privacy.accountant": "noise_for",
    "privacy.settings": "Privacy",
    "registry": "register",
    "session": "Diverged",
    "sinks.sink": "RunInfo Sink",
    "solvers.adam": "adam adamw",
    "solvers.fednova": "FedNova",
    "solvers.fedprox": "FedProx",
    "solvers.muloco": "muloco",
    "solvers.muon": "Muon",
    "solvers.outer": "Outer diloco fedadam fedavgm",
    "solvers.scaffold": "SCAFFOLD",
    "solvers.sgd": "SGD",
    "solvers.vrl_sgd": "VRLSGD",
    "swept": "Swept sweep",
}
"""Where each public name lives: imported when it is first used, since torch takes seconds to import
and the command line answers most questions without it."""

_MOVED = {
    "core": "Batch Engine Gradients PARTITIONS Plan Workers consensus train",
    "engines": "Looped RowModel Vmapped",
}
"""Names that were here in 0.1 and go with 0.3, and where they are now."""


def __getattr__(name: str) -> Any:
    if name in ("aggregates", "attacks", "metrics"):  # modules of what is public
        return import_module(f"partavg.{name}")
    for module, names in _HOMES.items():
        if name in names.split():
            value = getattr(import_module(f"partavg.{module}"), name)
            globals()[name] = value  # found at once from now on
            return value
    for module, names in _MOVED.items():
        if name in names.split():
            warnings.warn(
                f"partavg.{name} has moved to partavg.{module}.{name}; the old name goes with 0.3",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(import_module(f"partavg.{module}"), name)
    raise AttributeError(f"module 'partavg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
