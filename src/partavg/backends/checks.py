"""What a simulation is given, looked at before anything is built: one sentence for each mistake."""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partavg.core.adapt import Adapt
from partavg.core.loop import Batch
from partavg.core.participation import Participation
from partavg.core.rates import Rate
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.data.images import Images
from partavg.data.samples import shapes
from partavg.registry import mismatch
from partavg.sentences import reason, shown


def check_model(model: Any, loss: Any) -> None:
    """Raise a ValueError for what is no module, or no function of outputs and targets."""
    if not isinstance(model, nn.Module):
        hint = "call it, so that it is one" if isinstance(model, type) else "give one"
        raise ValueError(f"model {shown(model)} is no torch.nn.Module: {hint}")
    if isinstance(loss, type):
        raise ValueError(f"loss {loss.__name__} is a class: call it, {loss.__name__}()")
    if problem := mismatch(loss, None, None):
        raise ValueError(
            f"loss {shown(loss)} is no function of outputs and targets ({problem}): use "
            f"torch.nn.functional.cross_entropy, or one like it"
        )


def check_solver(solver: Any) -> None:
    """Raise a ValueError for what is no solver of ours."""
    if isinstance(solver, torch.optim.Optimizer):
        raise ValueError(
            f"solver {type(solver).__name__} is torch's, which steps one model: use partavg.SGD(…) "
            f"or partavg.adam(…), which step all workers"
        )
    if isinstance(solver, type):
        raise ValueError(f"solver {solver.__name__} is a class: call it, {solver.__name__}()")
    if not isinstance(solver, Solver):
        raise ValueError(
            f"solver {shown(solver)} is none: give the solver itself, like partavg.SGD(…)"
        )


def check_policies(
    schedule: Any, participation: Any, pace: Any, adapt: Any, transform: Any
) -> None:
    """Raise a ValueError for what says not when who does what."""
    if not isinstance(schedule, Schedule):
        raise ValueError(
            f"schedule {shown(schedule)} is none: use partavg.Schedule.partial(4), or another"
        )
    if not isinstance(participation, Participation | None):
        raise ValueError(
            f"participation {shown(participation)} is none: use partavg.Participation(clients=…, "
            f"active=…)"
        )
    if pace is not None and (problem := mismatch(pace, 1)):
        raise ValueError(f"pace {shown(pace)} is no function of the step: {problem}")
    if adapt is not None and (isinstance(adapt, type) or not isinstance(adapt, Adapt)):
        raise ValueError(f"adapt {shown(adapt)} is none: use partavg.AdaComm(…), or another")
    if transform is not None and (problem := mismatch(transform, None, None)):
        raise ValueError(
            f"transform {shown(transform)} is no function of inputs and keys: {problem}"
        )


def rate_of(lr: Any) -> Rate:
    """A learning rate as a function of the step, whose numbers are checked."""
    if isinstance(lr, type) or (callable(lr) and (problem := mismatch(lr, 1))):
        why = "a class" if isinstance(lr, type) else f"no function of the step: {problem}"
        raise ValueError(f"lr {shown(lr)} is {why}; give a number, or such a function")
    if not callable(lr):
        fixed = _rate(lr, "lr")
        return lambda step: fixed
    _rate(lr(1), "lr at step 1")
    return lambda step: _rate(lr(step), f"lr at step {step}")


def _rate(value: Any, what: str) -> float:
    if isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) == 1:
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{what} is {shown(value)}: give a number, or a function of the step")
    rate = float(value)
    if not math.isfinite(rate) or rate < 0:
        raise ValueError(f"{what} is {rate}: give a number from 0, like 0.1")
    return rate


def device_of(given: Any, what: str = "device") -> torch.device:
    """The device that is meant, if there is one; `what` it is called where there is none."""
    try:
        device = torch.device(given)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"{what} {given!r} cannot be used: {reason(error)}; use cpu") from None
    return device


def float_type(model: nn.Module) -> torch.dtype | None:
    """What NumPy's float64 is to become for a model: float64 if it computes in that."""
    first = next(model.parameters(), None)
    return None if first is None else first.dtype


def tried(trial: Callable[[], Any], batch: Batch, transform: Any) -> Any:
    """What a trial of a model on a batch gives; a ValueError if the model cannot read it."""
    try:
        return trial()
    except (ValueError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError, IndexError) as error:
        inputs = batch.inputs
        stored = isinstance(inputs, Tensor) and inputs.dtype == torch.uint8
        remedy = "; give transform=partavg.Images.fit(inputs)" if stored and not transform else ""
        raise ValueError(
            f"the model and the loss cannot be computed on a batch of inputs {shapes(inputs)} and "
            f"targets {shapes(batch.targets)}, by worker and sample: {reason(error)}{remedy}"
        ) from error


def placed(transform: Any, device: torch.device) -> Any:
    """A transform with its own tensors on the device."""
    return transform.to(device) if isinstance(transform, Images) else transform
