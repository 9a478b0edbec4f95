"""An ordinary nn.Module and a loss, as a function of rows of parameters and buffers."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from partavg.core.inputs import Inputs, call
from partavg.core.layout import Layout
from partavg.engines.dropout import KeyedDropout
from partavg.engines.unfused_lstm import UnfusedLSTM

Loss = Callable[[Any, Any], Tensor]
"""(outputs, targets) of one worker -> a scalar, for example torch.nn.functional.cross_entropy.

Outputs are whatever the module returns, targets what they are in the samples: a tensor, or several
in a tuple or a dict."""


class RowModel:
    """A module whose trainable parameters and buffers come from outside, as flat rows.

    The module given is copied and never changed. Frozen parameters and buffers that are no part
    of its state dict stay inside the copy, shared by all workers. All other buffers, of any dtype,
    are carried in rows of the parameters' dtype. A module given in evaluation mode is trained in
    training mode; parts of it that are in evaluation mode by themselves stay so.

    >>> model = RowModel(nn.Linear(3, 2), nn.functional.mse_loss, torch.device("cpu"))
    >>> model.params.names, model.params.size, model.buffers.size
    (('weight', 'bias'), 8, 0)
    """

    def __init__(self, module: nn.Module, loss: Loss, device: torch.device) -> None:
        trainable = _trainable(module)
        self._module = copy.deepcopy(module).to(device)
        if not module.training:
            self._module.train()
        self._probe = _Probe(self._module)
        self.criterion = loss
        state = self._module.state_dict().keys()
        buffers = {k: b for k, b in self._module.named_buffers() if k in state}
        self.params = Layout.of(trainable)
        self.buffers = Layout.of(buffers)
        self.dtype = next(iter(trainable.values())).dtype
        self._foreign = {k: b.dtype for k, b in buffers.items() if b.dtype != self.dtype}
        own = dict(self._module.named_parameters())
        self._parameters = [own[name] for name in trainable]
        self._homes = {name: _homes(self._module, buffer) for name, buffer in buffers.items()}
        with torch.no_grad():
            self._start = (
                self.params.flatten(own, self.dtype).to(device),
                self.buffers.flatten(buffers, self.dtype).to(device),
            )
        for name in self._foreign:
            if not torch.equal(self._native(name, buffers[name].to(self.dtype)), buffers[name]):
                raise ValueError(
                    f"buffer {name!r} of {buffers[name].dtype} cannot be carried exactly in "
                    f"{self.dtype} rows: register it with persistent=False, or use double()"
                )

    @property
    def skeleton(self) -> nn.Module:
        """The module in training mode, for its layers and for all that is no part of a row."""
        return self._module

    def start(self) -> tuple[Float[Tensor, "d"], Float[Tensor, "b"]]:
        """The parameters and buffers that the module was given with."""
        params, buffers = self._start
        return params.clone(), buffers.clone()

    @contextmanager
    def holding(
        self, params: Float[Tensor, "d"], buffers: Float[Tensor, "b"]
    ) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
        """The module with one row inside, and its parameters to train; for one row at a time.

        The parameters lie in the row's own memory. The buffers go in and come back.
        """
        for parameter, view in zip(
            self._parameters, self.params.views(params).values(), strict=True
        ):
            parameter.data = view
        views = self.buffers.views(buffers)
        for name, view in views.items():
            value = self._native(name, view).clone()
            for home, key in self._homes[name]:
                setattr(home, key, value)
        yield self._module, self._parameters
        after = dict(self._module.named_buffers())
        for name, view in views.items():
            view.copy_(after[name].detach())

    def loss(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        inputs: Inputs,
        targets: Inputs,
        key: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one worker on its batch, in training mode, and the buffers after it."""
        # Clones: the backward pass needs the buffers as the forward pass found them.
        native = {name: self._native(name, buffer).clone() for name, buffer in buffers.items()}
        tensors = {f"module.{name}": value for name, value in {**params, **native}.items()}
        with UnfusedLSTM(), KeyedDropout(key):
            outputs, after = functional_call(self._probe, tensors, (inputs,))
            return self.criterion(outputs, targets), {name: after[name] for name in native}

    def module(self, params: Float[Tensor, "d"], buffers: Float[Tensor, "b"]) -> nn.Module:
        """A copy of the module that holds one row, in evaluation mode."""
        with torch.no_grad(), self.holding(params, buffers.clone()) as (module, _):
            return copy.deepcopy(module).eval()

    def modules(
        self, params: Float[Tensor, "m d"], buffers: Float[Tensor, "m b"]
    ) -> Iterator[nn.Module]:
        """The same for each of some rows, but one and the same copy: a copy takes long to make."""
        other = copy.deepcopy(self)
        modes = [(part, part.training) for part in other.skeleton.modules()]
        for row in zip(params, buffers, strict=True):
            with torch.no_grad(), other.holding(*(tensor.clone() for tensor in row)) as (module, _):
                yield module.eval()
            for part, training in modes:
                part.training = training

    def _native(self, name: str, value: Tensor) -> Tensor:
        dtype = self._foreign.get(name)
        if dtype is None:
            return value
        return (value if dtype.is_floating_point else value.round()).to(dtype)


def _homes(module: nn.Module, buffer: Tensor) -> list[tuple[nn.Module, str]]:
    """All places in a module where a buffer stands."""
    return [
        (part, key)
        for part in module.modules()
        for key, value in part.named_buffers(recurse=False, remove_duplicate=False)
        if value is buffer
    ]


class _Probe(nn.Module):
    """Runs a module and also returns its buffers, which it may have changed or replaced."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Inputs) -> tuple[Any, dict[str, Tensor]]:
        return call(self.module, inputs), dict(self.module.named_buffers())


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to train, checked: initialized, of one dtype, none in another's memory."""
    trainable = {k: p for k, p in module.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError("the model has no trainable parameters: nothing to train or average")
    first = next(iter(trainable.values()))
    for name, parameter in trainable.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter {name!r} has no shape yet: call the model on a batch once")
        if parameter.dtype != first.dtype:
            raise ValueError(
                f"parameter {name!r} is {parameter.dtype}, others are {first.dtype}: "
                f"rows hold one dtype; convert the model with .float()"
            )
    memory = sorted((*_extent(p), name) for name, p in trainable.items() if p.numel())
    for (_, stop, one), (start, _, other) in pairwise(memory):
        if start < stop:
            raise ValueError(
                f"parameters {one!r} and {other!r} share memory but are two parameters, so "
                f"workers would untie them: tie them by assigning the same nn.Parameter"
            )
    return trainable


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the one after its last."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()
