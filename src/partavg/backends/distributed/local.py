"""Solvers on top of a user's own optimizer, which takes the local steps."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from partavg.backends.distributed.row import ModuleRow, flat
from partavg.core.layout import Layout
from partavg.core.solver import Solver, State, Step
from partavg.solvers.fednova import FedNova
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import Outer
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD
from partavg.solvers.vrl_sgd import VRLSGD


@dataclass(frozen=True, slots=True)
class Given(SGD):
    """Stands for the user's optimizer: steps are taken elsewhere, averages are plain means."""

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """The optimizer keeps its own memory."""
        return {}

    def step_(
        self, params: Float[Tensor, "m n"], grads: Float[Tensor, "m n"], state: State, now: Step
    ) -> None:
        """The optimizer does it."""


def on_top_of(optimizer: Optimizer | None, solver: Solver | None) -> Solver:
    """The solver with the user's optimizer in the place of its own local steps."""
    if solver is None:
        return Given()
    kinds, name = kinds_of(solver), type(solver).__name__
    if len(kinds) == 1:
        raise ValueError(
            f"solver {name} takes local steps, and here your optimizer does: leave it out, or use "
            f"one that goes on top, like FedProx"
        )
    if optimizer is None:
        raise ValueError(f"solver {name} needs the optimizer: give it to attach")
    if FedNova in kinds:
        raise ValueError(
            "solver FedNova is for workers that take different steps, and attached ranks all take "
            "the same: leave it out, for it would be plain averaging"
        )
    own = Given()
    if {SCAFFOLD, VRLSGD} & set(kinds):
        own = _mirrored(optimizer, name)
        if own.momentum and FedProx in kinds:
            raise ValueError(f"solver {name} with FedProx cannot have momentum: use one of them")
    return _with_base(solver, own)


def corrects_parameters(solver: Solver) -> bool:
    """Whether corrections are added to parameters after a step, beside the optimizer's momentum."""
    own: Any = solver
    while hasattr(own, "base"):
        own = own.base
    return bool({SCAFFOLD, VRLSGD} & set(kinds_of(solver)) and own.momentum)


def corrects_gradients(solver: Solver) -> bool:
    """Whether gradients change before a step."""
    changing = {FedProx, SCAFFOLD, VRLSGD} & set(kinds_of(solver))
    return bool(changing) and not corrects_parameters(solver)


def correct_gradients_(row: ModuleRow, solver: Solver, lr: float) -> None:
    """Before a step of the optimizer, let the solver do its part of it to the gradients."""
    _do_its_part(row, solver, lr, _gradients)


def correct_parameters_(row: ModuleRow, solver: Solver, lr: float) -> None:
    """After a step of the optimizer, let the solver do its part of it to the parameters."""
    _do_its_part(row, solver, lr, torch.empty_like)


def _do_its_part(
    row: ModuleRow, solver: Solver, lr: float, gradients: Callable[[nn.Parameter], Tensor]
) -> None:
    now = Step(lr, row.taken + 1)
    for parameter, (a, b) in row.parameters():
        if parameter.grad is not None:
            memory = {name: tensor[:, a:b] for name, tensor in row.memory.items()}
            rows, grads = flat(parameter.detach()), flat(gradients(parameter))
            solver.step_(rows[None], grads[None], memory, now)


def _gradients(parameter: nn.Parameter) -> Tensor:
    """The gradient, lying in memory as the parameter does."""
    assert parameter.grad is not None
    if parameter.grad.stride() != parameter.stride():
        parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
    return parameter.grad


def without_outer(solver: Solver) -> Solver:
    """The solver that averages only: an outer optimizer would step away from the average."""
    return solver.base if isinstance(solver, Outer) else solver


def keeps_apart(solver: Solver) -> bool:
    """Whether ranks differ in a part that was just averaged."""
    return isinstance(solver, Outer) and solver.keep > 0


def rate_of(optimizer: Optimizer | None, solver: Solver) -> float:
    """The learning rate of a step; some solvers need all parameters to have the same."""
    if optimizer is None:
        return 0.0
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1 and {SCAFFOLD, VRLSGD} & set(kinds_of(solver)):
        raise ValueError(
            f"solver {type(solver).__name__} needs one learning rate for all parameters, and the "
            f"optimizer has {sorted(rates)}: use one"
        )
    return max(rates)


def kinds_of(solver: Any) -> list[type]:
    """The types of a solver and of those below it."""
    return [type(solver), *(kinds_of(solver.base) if hasattr(solver, "base") else [])]


def _mirrored(optimizer: Optimizer, name: str) -> Given:
    """What corrections must know of the optimizer's momentum."""
    group = optimizer.param_groups[0]
    keys = ("momentum", "nesterov", "dampening", "maximize")
    alike = all(g.get(key) == group.get(key) for g in optimizer.param_groups for key in keys)
    if not isinstance(optimizer, torch.optim.SGD) or not alike or any(map(group.get, keys[2:])):
        raise ValueError(
            f"solver {name} reads gradients from the steps of plain SGD, and the optimizer is "
            f"{type(optimizer).__name__}: use torch.optim.SGD, without dampening, with one "
            f"momentum for all parameters"
        )
    return Given(momentum=group["momentum"], nesterov=group["nesterov"])


def _with_base(solver: Any, own: Given) -> Solver:
    if not hasattr(solver, "base"):
        return own
    changed: Solver = replace(solver, base=_with_base(solver.base, own))
    return changed
