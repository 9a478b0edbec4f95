"""An ordinary nn.Module and a loss, as a function of rows of parameters and buffers."""

import copy
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from partavg.core.layout import Layout
from partavg.engines.dropout import KeyedDropout

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) of one worker -> a scalar, for example torch.nn.functional.cross_entropy."""


class RowModel:
    """A module whose trainable parameters and buffers come from outside, as flat rows.

    The module given is copied and never changed. Frozen parameters stay inside the copy, shared
    by all workers. Buffers of any dtype are carried in rows of the parameters' dtype.
    """

    def __init__(self, module: nn.Module, loss: Loss, device: torch.device) -> None:
        trainable = _trainable(module)
        self._module = copy.deepcopy(module).to(device).train()
        self._loss = loss
        buffers = dict(self._module.named_buffers())
        self.params = Layout.of(trainable)
        self.buffers = Layout.of(buffers)
        self.dtype = next(iter(trainable.values())).dtype
        self._foreign = {k: b.dtype for k, b in buffers.items() if b.dtype != self.dtype}
        for name in self._foreign:
            if not torch.equal(self._native(name, buffers[name].to(self.dtype)), buffers[name]):
                raise ValueError(
                    f"buffer {name!r} of {buffers[name].dtype} cannot be carried exactly in "
                    f"{self.dtype} rows: make it a plain attribute, or the model double()"
                )

    def start(self) -> tuple[Float[Tensor, "d"], Float[Tensor, "b"]]:
        """The parameters and buffers that the module was given with."""
        device = next(self._module.parameters()).device
        with torch.no_grad():
            params = self.params.flatten(dict(self._module.named_parameters()), self.dtype)
            buffers = self.buffers.flatten(dict(self._module.named_buffers()), self.dtype)
        return params.to(device), buffers.to(device)

    def loss(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        inputs: Tensor,
        targets: Tensor,
        key: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one worker on its batch, in training mode, and the buffers after it."""
        # Clones: the backward pass needs the buffers as the forward pass found them.
        native = {name: self._native(name, buffer).clone() for name, buffer in buffers.items()}
        with KeyedDropout(key):
            outputs = functional_call(self._module, {**params, **native}, (inputs,))
            return self._loss(outputs, targets), native

    def module(self, params: Float[Tensor, "d"], buffers: Float[Tensor, "b"]) -> nn.Module:
        """A copy of the module that holds one row."""
        module = copy.deepcopy(self._module)
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in self.params.views(params).items():
                own[name].copy_(value)
            for name, value in self.buffers.views(buffers).items():
                own[name].copy_(self._native(name, value))
        return module

    def _native(self, name: str, value: Tensor) -> Tensor:
        dtype = self._foreign.get(name)
        if dtype is None:
            return value
        return (value if dtype.is_floating_point else value.round()).to(dtype)


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to train, checked: initialized, of one dtype, none a view of another."""
    trainable: dict[str, nn.Parameter] = {}
    owners: dict[int, str] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter {name!r} has no shape yet: call the model on a batch once")
        first = next(iter(trainable.values()), parameter)
        if parameter.dtype != first.dtype:
            raise ValueError(
                f"parameter {name!r} is {parameter.dtype}, others are {first.dtype}: "
                f"rows hold one dtype; convert the model with .float()"
            )
        owner = owners.setdefault(parameter.untyped_storage().data_ptr(), name)
        if owner != name:
            raise ValueError(
                f"parameters {owner!r} and {name!r} share memory but are two parameters, so "
                f"workers would untie them: tie them by assigning the same nn.Parameter"
            )
        trainable[name] = parameter
    if not trainable:
        raise ValueError("the model has no trainable parameters: nothing to train or average")
    return trainable
