"""Steps that a GradScaler is in charge of: it may skip one on one rank, and not on another."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from partavg.core.arguments import check_kind

_DEEP = 12  # calls between a scaler's step and the end of the optimizer's


def check_scaler(scaler: object, optimizers: tuple[Optimizer, ...]) -> None:
    """Raise a ValueError for what is no scaler, or one whose optimizer nobody knows."""
    check_kind("scaler", scaler, GradScaler | None, "torch.amp.GradScaler(…)")
    if scaler is not None and not optimizers:
        raise ValueError(
            "a scaler makes sense with the optimizer whose steps it skips: give that to attach, "
            "too, or leave the scaler out and call averager.step() after scaler.update()"
        )


@contextmanager
def watching(
    scaler: GradScaler, *, step: Callable[[object], None], update: Callable[[], None]
) -> Iterator[None]:
    """Call `step` with an optimizer that the scaler has dealt with, `update` when it is updated."""

    def stepping(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = own_step(optimizer, *args, **kwargs)
        step(optimizer)
        return result

    def updating(*args: Any, **kwargs: Any) -> None:
        own_update(*args, **kwargs)
        update()

    own_step, own_update = scaler.step, scaler.update
    before = {key: vars(scaler).get(key) for key in ("step", "update")}
    vars(scaler).update(step=stepping, update=updating)
    try:
        yield
    finally:
        for key, method in before.items():
            if method is None:
                del vars(scaler)[key]
            else:
                vars(scaler)[key] = method


def unscale_(optimizer: Optimizer) -> None:
    """Make true gradients of those that a fused optimizer would unscale by itself."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(scale.to(parameter.grad.device))
        optimizer.grad_scale = None  # type: ignore[attr-defined]


def check_no_other_scaler() -> None:
    """Raise a ValueError in a step that is taken by a GradScaler of which `attach` was not told."""
    frame = inspect.currentframe()
    for _ in range(_DEEP):
        frame = frame and frame.f_back
        taker = frame.f_locals.get("self") if frame else None
        if isinstance(taker, GradScaler) and taker.is_enabled():
            raise ValueError(
                "the optimizer is stepped by a GradScaler, which may skip a step on one rank and "
                "not on another: give it to attach, scaler=scaler"
            )
