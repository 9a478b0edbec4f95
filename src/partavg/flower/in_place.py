"""What an app's own training loop may do to its module: change its numbers, and nothing else."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

from torch import Tensor, nn

from partavg.core.layout import Layout
from partavg.sentences import shown

_REMEDY = "train the module in place, with an optimizer or with copy_, or work on a copy of it"


class InPlace:
    """A module before an own loop has it, to compare with."""

    def __init__(self, module: nn.Module, buffers: Layout) -> None:
        self._parameters = dict(module.named_parameters())
        self._frozen = {name for name, p in self._parameters.items() if not p.requires_grad}
        own = dict(module.named_buffers())
        self._buffers = {name: own[name] for name in buffers.names}
        self._kinds = {n: _kind(t) for n, t in (*self._parameters.items(), *self._buffers.items())}

    def check(self, module: nn.Module) -> None:
        """Raise a ValueError if something else than numbers is another one now."""
        after = dict(module.named_parameters())
        for name, parameter in self._parameters.items():
            if after.get(name) is not parameter:
                how = "replaced" if name in after else "took away"
                raise ValueError(f"local_steps {how} the parameter {name!r}: {_REMEDY}")
            if name in self._frozen and parameter.requires_grad:
                raise ValueError(
                    f"local_steps trains the parameter {name!r}, which model() froze, so that "
                    f"nobody averages it: let model() return it unfrozen"
                )
        if more := after.keys() - self._parameters:
            raise ValueError(
                f"local_steps gave the module the parameter {min(more)!r}, which nobody averages: "
                f"let model() make it"
            )
        own = dict(module.named_buffers())
        for name, kind in self._kinds.items():
            tensor = after.get(name, own.get(name))
            if tensor is None:
                raise ValueError(f"local_steps took away the buffer {name!r}: {_REMEDY}")
            if _kind(tensor) != kind:
                raise ValueError(
                    f"local_steps left {name!r} as {_kind(tensor)}, not {kind}: {_REMEDY}"
                )

    def restore_(self) -> None:
        """Let what was trained be trained again, without gradients of before."""
        for name, parameter in self._parameters.items():
            parameter.grad = None
            parameter.requires_grad_(name not in self._frozen)


def check_finite(views: Mapping[str, Tensor]) -> None:
    """Raise a ValueError for numbers that are none, before they are kept and sent."""
    for name, view in views.items():
        if not bool(view.isfinite().all()):
            raise ValueError(
                f"local_steps left numbers in {name!r} that are not finite, and the model of "
                f"before stays: use a smaller learning rate, or clip gradients"
            )


def mean_loss(returned: Any) -> float:
    """What an own loop returned, as a number; NaN for nothing."""
    if returned is None:
        return float("nan")
    if isinstance(returned, Tensor) and returned.numel() == 1:
        returned = returned.item()
    if isinstance(returned, bool) or not isinstance(returned, Real):
        raise ValueError(
            f"local_steps returned {shown(returned)}: return the mean loss of its steps, or nothing"
        )
    return float(returned)


def _kind(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)} on {tensor.device}"
