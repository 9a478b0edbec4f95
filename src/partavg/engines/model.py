"""An ordinary nn.Module and a loss, as a function of rows of parameters and buffers."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from partavg.core.average import accumulating
from partavg.core.layout import Layout
from partavg.engines.dropout import KeyedDropout
from partavg.engines.unfused_lstm import UnfusedLSTM

_EXACT = 0.5  # of the whole numbers that a type holds, those that averaging does not round

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) of one worker -> a scalar, for example torch.nn.functional.cross_entropy."""


class RowModel:
    """A module whose trainable parameters and buffers come from outside, as flat rows.

    The module given is copied and never changed. Frozen parameters and buffers that are no part
    of its state dict stay inside the copy, shared by all workers. All other buffers, of any dtype,
    are carried in rows of the parameters' dtype, or of float32 where that is coarser. Whole numbers
    are carried as what they have grown by since the start: what stays the same is exact however
    large it is. A module given in evaluation mode is trained in training mode; parts of it that
    are in evaluation mode by themselves stay so.

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
        kind = accumulating(self.dtype)
        self._foreign = {k: b.dtype for k, b in buffers.items() if b.dtype != kind}
        self._whole = {k: b.to(torch.int64, copy=True) for k, b in buffers.items() if _is_whole(b)}
        self._most_counted = _EXACT / torch.finfo(kind).eps
        own = dict(self._module.named_parameters())
        self._parameters = [own[name] for name in trainable]
        self._homes = {name: _homes(self._module, buffer) for name, buffer in buffers.items()}
        with torch.no_grad():
            self._start = (
                self.params.flatten(own, self.dtype).to(device),
                self.buffers.flatten(
                    {name: self._carried(name, buffer) for name, buffer in buffers.items()}, kind
                ).to(device),
            )
        for name in self._foreign:
            carried = self._carried(name, buffers[name]).to(kind)
            if not torch.equal(self._native(name, carried), buffers[name]):
                raise ValueError(
                    f"buffer {name!r} of {buffers[name].dtype} cannot be carried exactly in "
                    f"{kind} rows: register it with persistent=False, or use double()"
                )

    def whole_numbers(self) -> Int[Tensor, "_"]:
        """Those that the module was given with, which rows do not hold."""
        start = self._start[1].new_empty(0, dtype=torch.int64)
        return torch.cat([start, *(number.flatten() for number in self._whole.values())])

    @property
    def counters(self) -> tuple[int, ...]:
        """The columns of the buffers that hold whole numbers."""
        places = zip(self.buffers.names, self.buffers.starts, self.buffers.sizes, strict=True)
        return tuple(
            at for name, start, n in places if name in self._whole for at in range(start, start + n)
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
            view.copy_(self._carried(name, after[name].detach()))

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
        tensors = {f"module.{name}": value for name, value in {**params, **native}.items()}
        with UnfusedLSTM(), KeyedDropout(key):
            outputs, after = functional_call(self._probe, tensors, (inputs,))
            carried = {name: self._carried(name, after[name]) for name in native}
            return self.criterion(outputs, targets), carried

    def module(self, params: Float[Tensor, "d"], buffers: Float[Tensor, "b"]) -> nn.Module:
        """A copy of the module that holds one row, in evaluation mode."""
        self._check_counted(buffers)
        with torch.no_grad(), self.holding(params, buffers.clone()) as (module, _):
            return copy.deepcopy(module).eval()

    def modules(
        self, params: Float[Tensor, "m d"], buffers: Float[Tensor, "m b"]
    ) -> Iterator[nn.Module]:
        """The same for each of some rows, but one and the same copy: a copy takes long to make."""
        other = copy.deepcopy(self)
        modes = [(part, part.training) for part in other.skeleton.modules()]
        for row in zip(params, buffers, strict=True):
            self._check_counted(row[1])
            with torch.no_grad(), other.holding(*(tensor.clone() for tensor in row)) as (module, _):
                yield module.eval()
            for part, training in modes:
                part.training = training

    def _native(self, name: str, value: Tensor) -> Tensor:
        dtype = self._foreign.get(name)
        if dtype is None:
            return value
        if name in self._whole:
            value = value.round().to(torch.int64) + self._whole[name]
        return value.to(dtype)

    def _carried(self, name: str, value: Tensor) -> Tensor:
        """A buffer as it stands in a row: whole numbers by what they have grown."""
        return value.to(torch.int64) - self._whole[name] if name in self._whole else value

    def _check_counted(self, buffers: Float[Tensor, "b"]) -> None:
        """Raise a ValueError if whole numbers have grown beyond what is averaged exactly."""
        for name, grown in self.buffers.views(buffers).items() if self._whole else ():
            if name in self._whole and bool((grown.abs() >= self._most_counted).any()):
                raise ValueError(
                    f"buffer {name!r} has changed by {self._most_counted:,.0f} or more, and rows "
                    f"of {buffers.dtype} cannot count on exactly: use double(), or register it "
                    f"with persistent=False"
                )


def _is_whole(buffer: Tensor) -> bool:
    return not (buffer.is_floating_point() or buffer.is_complex())


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

    def forward(self, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.module(inputs), dict(self.module.named_buffers())


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
