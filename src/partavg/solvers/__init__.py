"""Local solvers, one file per paper."""

from collections.abc import Callable

from partavg.core.solver import Solver
from partavg.solvers.sgd import SGD

SOLVERS: dict[str, Callable[..., Solver]] = {"sgd": SGD}
