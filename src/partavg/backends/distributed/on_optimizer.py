"""Solvers on top of a user's own optimizer, which takes the local steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from partavg.backends.distributed.box import held, is_distributed
from partavg.backends.distributed.columns import flat
from partavg.backends.distributed.module_row import ModuleRow
from partavg.backends.distributed.optimizers import owned, rates
from partavg.core.abilities import Abilities, abilities, below, name_of
from partavg.core.layout import Layout
from partavg.core.solver import Solver, State, Step
from partavg.core.trial import Trial, check_abilities, solver_of
from partavg.solvers.sgd import SGD


@dataclass(frozen=True, slots=True)
class Given(SGD):
    """Stands for the user's optimizer: steps are taken elsewhere, averages are plain means."""

    @property
    def abilities(self) -> Abilities:
        """It remembers nothing at all."""
        weigh = self.step_weight if self.momentum else None
        return Abilities(plain=True, renewed_by_averaging=True, step_weight=weigh)

    def init(self, params: Float[Tensor, "m d"], layout: Layout) -> State:
        """The optimizer keeps its own memory."""
        return {}

    def step_(
        self, params: Float[Tensor, "m n"], grads: Float[Tensor, "m n"], state: State, now: Step
    ) -> None:
        """The optimizer does it."""


def on_top_of(
    optimizers: Sequence[Optimizer], solver: Solver | None, *, uneven: bool = False
) -> Solver:
    """The solver with the user's optimizers in the place of its own local steps."""
    if solver is None:
        return Given()
    name, said = name_of(solver_of(solver)), abilities(solver)
    if below(solver) is None:
        raise ValueError(
            f"solver {name} takes local steps, and here your optimizer does: leave it out, or use "
            f"one that goes on top of another, its `base`"
        )
    if not optimizers:
        raise ValueError(f"solver {name} needs the optimizer: give it to attach")
    if said.only_for_unequal_steps and not uneven:
        raise ValueError(
            f"solver {name} is for workers that take different steps, and these ranks all take the "
            f"same: leave it out, for it would be plain averaging, or give a pace or uneven=True"
        )
    own = _mirrored(optimizers, name) if said.estimates_gradients else Given()
    made = _with_base(solver, own)
    check_abilities(made)
    _check_corrections(made)
    return made


def _check_corrections(solver: Solver) -> None:
    """Raise a ValueError if a solver changes what it does not say, which then would be lost."""
    said, name = abilities(solver), name_of(solver)
    if said.corrects_gradients and said.corrects_parameters:
        raise ValueError(
            f"solver {name} corrects gradients, and one below it parameters, beside the momentum: "
            f"use one of them, or an optimizer without momentum"
        )
    if said.whole_tensors:
        raise ValueError(
            f"solver {name} must see whole tensors, and ranks may hold shards of them: use an "
            f"optimizer that does what it does, or the simulator"
        )
    gradients, parameters = Trial(solver).step()
    if parameters and not said.corrects_parameters:
        raise ValueError(
            f"solver {name} changes parameters in `step_`, but does not say so: set "
            f"corrects_parameters=True in its abilities"
        )
    if gradients and not (said.corrects_gradients or said.corrects_parameters):
        raise ValueError(
            f"solver {name} changes gradients in `step_`, but does not say so: set "
            f"corrects_gradients=True in its abilities"
        )
    trial = Trial(solver)
    before = trial.rows.mean(0)
    trial.averages_plainly()
    if not said.outer_step and not torch.allclose(trial.rows.mean(0), before, 1e-9, 1e-12):
        raise ValueError(
            f"solver {name} steps away from the average in `decode_`, but does not say so: set "
            f"outer_step=True in its abilities, so that the consensus is the average"
        )


def correct_gradients_(row: ModuleRow, solver: Solver, optimizer: Optimizer) -> None:
    """Before a step of an optimizer, let the solver do its part of it to the gradients."""
    _do_its_part(row, solver, optimizer, _gradients)


def correct_parameters_(row: ModuleRow, solver: Solver, optimizer: Optimizer) -> None:
    """After a step of an optimizer, let the solver do its part of it to the parameters."""
    _do_its_part(row, solver, optimizer, lambda parameter: torch.empty_like(held(parameter)))


def _do_its_part(
    row: ModuleRow,
    solver: Solver,
    optimizer: Optimizer,
    gradients: Callable[[nn.Parameter], Tensor],
) -> None:
    now, stepped = Step(max(rates([optimizer])), row.taken + 1), owned(optimizer)
    for parameter, (a, b) in row.shared_parameters():
        if parameter.grad is not None and id(parameter) in stepped:
            memory = {name: tensor[:, a:b] for name, tensor in row.memory.items()}
            rows, grads = flat(held(parameter)), flat(gradients(parameter))
            solver.step_(rows[None], grads[None], memory, now)


def _gradients(parameter: nn.Parameter) -> Tensor:
    """The gradient, lying in memory as the parameter does."""
    grad: Any = parameter.grad
    if is_distributed(grad) and grad.placements != (sharded := cast("Any", parameter)).placements:
        grad = parameter.grad = grad.redistribute(sharded.device_mesh, sharded.placements)
    if held(grad).stride() != held(parameter).stride():
        grad = parameter.grad = torch.empty_like(parameter).copy_(grad)
    return held(grad)


def rate_of(optimizers: Sequence[Optimizer], solver: Solver, said: Abilities) -> float:
    """The learning rate of a step; some solvers need all parameters to have the same."""
    if not optimizers:
        return 0.0
    found = rates(optimizers)
    if len(found) > 1 and said.estimates_gradients:
        raise ValueError(
            f"solver {name_of(solver)} needs one learning rate for all parameters, and the "
            f"optimizer has {sorted(found)}: use one"
        )
    return max(found)


def _mirrored(optimizers: Sequence[Optimizer], name: str) -> Given:
    """What corrections must know of the optimizers' momentum."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    keys = ("momentum", "nesterov", "dampening", "maximize")
    first = groups[0]
    alike = all(group.get(key) == first.get(key) for group in groups for key in keys)
    others = [type(each).__name__ for each in optimizers if not isinstance(each, torch.optim.SGD)]
    if others or not alike or any(map(first.get, keys[2:])):
        raise ValueError(
            f"solver {name} reads gradients from the steps of plain SGD, and the optimizer is "
            f"{(others or ['SGD'])[0]}: use torch.optim.SGD, without dampening, with one "
            f"momentum for all parameters"
        )
    return Given(momentum=first["momentum"], nesterov=first["nesterov"])


def _with_base(solver: Solver, own: Given) -> Solver:
    """The solver with another one in the place of the lowest below it."""
    base = below(solver)
    if base is None:
        return own
    if not is_dataclass(solver):
        raise ValueError(
            f"solver {name_of(solver)} is no dataclass, so that your optimizer cannot take the "
            f"place of its base: make it a frozen dataclass with a field `base`"
        )
    changed: Any = replace(solver, base=_with_base(base, own))
    made: Solver = changed
    return made
