"""Local solvers by name."""

from collections.abc import Callable

from partavg.core.solver import Solver
from partavg.registry import Names
from partavg.solvers.adam import adam, adamw
from partavg.solvers.fednova import FedNova
from partavg.solvers.fedprox import FedProx
from partavg.solvers.muloco import muloco
from partavg.solvers.muon import Muon
from partavg.solvers.outer import diloco, fedadam, fedavgm
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD
from partavg.solvers.vrl_sgd import VRLSGD

SOLVERS: Names[Callable[..., Solver]] = Names(
    "solver",
    {
        "adam": adam,
        "adamw": adamw,
        "diloco": diloco,
        "fedadam": fedadam,
        "fedavgm": fedavgm,
        "fednova": FedNova,
        "fedprox": FedProx,
        "muloco": muloco,
        "muon": Muon,
        "scaffold": SCAFFOLD,
        "sgd": SGD,
        "vrl_sgd": VRLSGD,
    },
)
