"""An ordinary nn.Module and a loss, as a function of rows of parameters and buffers."""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from partavg.core.inputs import Inputs, call
from partavg.core.layout import Layout
from partavg.core.partition import Span, merged
from partavg.core.reduce import accumulating
from partavg.engines.dropout import KeyedDropout
from partavg.engines.trainable import copied, trainable
from partavg.engines.unfused_lstm import UnfusedLSTM
from partavg.torch_internals import batch_norms

Loss = Callable[[Any, Any], Tensor]
"""(outputs, targets) of one worker -> a scalar, for example torch.nn.functional.cross_entropy.

Outputs are whatever the module returns, targets what they are in the samples: a tensor, or several
in a tuple or a dict."""

_EXACT = 0.5  # of the whole numbers that a type holds, those that averaging does not round
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
_Homes = dict[str, list[tuple[nn.Module, str]]]


class RowModel:
    """A module whose trainable parameters and buffers come from outside, as flat rows.

    The module given is copied and never changed. Frozen parameters and buffers that are no part
    of its state dict stay inside the copy, shared by all workers. All other buffers, of any dtype,
    are carried in rows of the parameters' dtype. A module given in evaluation mode is trained in
    training mode; parts of it that are in evaluation mode by themselves stay so. With
    `fixed_statistics` BatchNorm normalizes by the running statistics, which it leaves as they are.

    >>> model = RowModel(nn.Linear(3, 2), nn.functional.mse_loss, torch.device("cpu"))
    >>> model.params.names, model.params.size, model.buffers.size
    (('weight', 'bias'), 8, 0)
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        device: torch.device,
        *,
        fixed_statistics: bool = False,
    ) -> None:
        found = trainable(module)
        # What runs may leave things behind in a module, so that this one is never run: others are,
        # which share its tensors.
        self._module = copied(module).to(device)
        if not module.training:
            self._module.train()
        norms = _norms(self._module)
        if fixed_statistics:
            for norm in norms:
                norm.eval()
        self._running = _twin(self._module)
        self._probe = _Probe(_twin(self._module))
        self.criterion = loss
        if any(isinstance(layer, nn.RNNBase) for layer in self._module.modules()):
            # Weights are rows of one tensor: torch's advice on that is not for users of ours.
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contig")
        state = self._module.state_dict().keys()
        buffers = {k: b for k, b in self._module.named_buffers() if k in state}
        self.params = Layout.of(found)
        self.buffers = Layout.of(buffers)
        measured = {id(buffer) for norm in norms for buffer in norm.buffers(recurse=False)}
        places = zip(buffers.values(), self.buffers.starts, self.buffers.sizes, strict=True)
        self.statistics = merged(Span(at, at + n) for b, at, n in places if id(b) in measured)
        """The columns of the buffers that are statistics of BatchNorm."""
        self.dtype = next(iter(found.values())).dtype
        kind = accumulating(self.dtype)
        self._foreign = {k: b.dtype for k, b in buffers.items() if b.dtype != kind}
        self._whole = {k: b.to(torch.int64, copy=True) for k, b in buffers.items() if _is_whole(b)}
        self._most_counted = _EXACT / torch.finfo(kind).eps
        own = dict(self._module.named_parameters())
        self._tensors = {**{name: own[name] for name in found}, **buffers}
        self._parameters = [own[name] for name in found]
        self._paths = _paths(self._module, self._tensors)
        self._homes = self._homes_in(self._running)
        self._counters = torch.tensor(self.counters, dtype=torch.int64, device=device)
        self._check_exact(buffers, kind)
        with torch.no_grad():
            self._start = (
                self.params.flatten(own, self.dtype).to(device),
                self.buffers.flatten(
                    {name: self._carried(name, buffer) for name, buffer in buffers.items()}, kind
                ).to(device),
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

    @property
    def resting(self) -> frozenset[str]:
        """The names of the layers that are in evaluation mode by themselves."""
        layers = self._module.named_modules()
        return frozenset(name for name, layer in layers if not layer.training)

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
        self._put_(self._homes, views)
        yield self._running, self._parameters
        after = dict(self._running.named_buffers())
        for name, view in views.items():
            view.copy_(self._carried(name, after[name].detach()))

    def renew(self) -> None:
        """Let another copy of the module run from now on: what was done to the last one is gone."""
        self._running = _twin(self._module)
        self._homes = self._homes_in(self._running)

    def twin(self) -> "RowModel":
        """The same with a module of its own to run, so that both can hold a row at a time.

        They share what is no part of rows, which no run may change.
        """
        own, tensors = copy.copy(self), (*self._module.parameters(), *self._module.buffers())
        memory: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
        for parameter in self._parameters:
            memory[id(parameter)] = type(parameter)(parameter.detach())
        own._parameters = [memory[id(parameter)] for parameter in self._parameters]
        own._running = copy.deepcopy(self._module, memory)
        own._homes = own._homes_in(own._running)
        return own

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
        native = {name: self.native(name, buffer).clone() for name, buffer in buffers.items()}
        tensors = {
            f"module.{path}": value
            for name, value in {**params, **native}.items()
            for path in self._paths[name]
        }
        with UnfusedLSTM(), KeyedDropout(key):
            outputs, after = functional_call(self._probe, tensors, (inputs,), tie_weights=False)
            carried = {name: self._carried(name, after[name]) for name in native}
            return self.criterion(outputs, targets), carried

    def module(self, params: Float[Tensor, "d"], buffers: Float[Tensor, "b"]) -> nn.Module:
        """A copy of the module that holds one row, in evaluation mode."""
        self._check_counted(buffers)
        views = {**self.params.views(params), **self.buffers.views(buffers)}
        row: dict[int, Any] = {}
        for name, tensor in self._tensors.items():
            value = self.native(name, views[name].detach()).clone()
            row[id(tensor)] = type(tensor)(value) if isinstance(tensor, nn.Parameter) else value
        return copy.deepcopy(self._module, row).eval()

    def modules(
        self, params: Float[Tensor, "m d"], buffers: Float[Tensor, "m b"]
    ) -> Iterator[nn.Module]:
        """The same for each of some rows, but one and the same copy: a copy takes long to make."""
        module = self.module(*self._start)
        own, homes = dict(module.named_parameters()), self._homes_in(module)
        self._check_counted(buffers)
        for row, statistics in zip(params, buffers, strict=True):
            for name, view in self.params.views(row.detach().clone()).items():
                own[name].data = view
            self._put_(homes, self.buffers.views(statistics))
            yield module.eval()

    def outside_rows(self) -> Iterator[tuple[str, str, Any]]:
        """What the module that runs keeps and rows do not carry: kind, name and value of each."""
        carried = {path for paths in self._paths.values() for path in paths}
        for owner, part in self._running.named_modules():
            own = {key: value for key, value in vars(part).items() if key not in _MODULE_ATTRIBUTES}
            for kind, some in (
                ("parameter", part.named_parameters(recurse=False)),
                ("buffer", part.named_buffers(recurse=False)),
                ("attribute", own.items()),
            ):
                for key, value in some:
                    name = f"{owner}.{key}".removeprefix(".")
                    if name not in carried:
                        yield kind, name, value

    def _homes_in(self, module: nn.Module) -> _Homes:
        """All places of a copy of the module where each buffer of a row stands."""
        split = {
            name: [p.rpartition(".") for p in self._paths[name]] for name in self.buffers.names
        }
        return {
            name: [(module.get_submodule(owner), key) for owner, _, key in places]
            for name, places in split.items()
        }

    def _put_(self, homes: _Homes, buffers: Mapping[str, Tensor]) -> None:
        """Put copies of a row's buffers where they belong."""
        for name, view in buffers.items():
            value = self.native(name, view).clone()
            for home, key in homes[name]:
                setattr(home, key, value)

    def _check_exact(self, buffers: Mapping[str, Tensor], kind: torch.dtype) -> None:
        """That rows can hold every buffer as it is."""
        for name, dtype in self._foreign.items():
            if dtype.is_complex:
                raise ValueError(
                    f"buffer {name!r} of {dtype} cannot be carried in rows of real numbers: "
                    f"register it with persistent=False, or as two real ones"
                )
            carried = self._carried(name, buffers[name]).to(kind)
            if not torch.equal(self.native(name, carried), buffers[name]):
                raise ValueError(
                    f"buffer {name!r} of {buffers[name].dtype} cannot be carried exactly in "
                    f"{kind} rows: register it with persistent=False, or use double()"
                )

    def native(self, name: str, value: Tensor) -> Tensor:
        """A buffer of a row, or of several, in its own type."""
        dtype = self._foreign.get(name)
        if dtype is None:
            return value
        if name in self._whole:
            value = value.round().to(torch.int64) + self._whole[name]
        return value.to(dtype)

    def _carried(self, name: str, value: Tensor) -> Tensor:
        """A buffer as it stands in a row: whole numbers by what they have grown."""
        return value.to(torch.int64) - self._whole[name] if name in self._whole else value

    def _check_counted(self, buffers: Float[Tensor, "*m b"]) -> None:
        """Raise a ValueError if whole numbers have grown beyond what is averaged exactly."""
        if not len(self._counters):
            return
        grown = buffers[..., self._counters].abs().reshape(-1, len(self._counters)).amax(0)
        beyond = grown >= self._most_counted
        if bool(beyond.any()):  # all at once: to ask for each would stop a GPU as often
            first = self.counters[int(beyond.nonzero()[0])]
            starts = zip(self.buffers.names, self.buffers.starts, strict=True)
            name = [name for name, start in starts if start <= first][-1]
            raise ValueError(
                f"buffer {name!r} has changed by {self._most_counted:,.0f} or more, and rows "
                f"of {buffers.dtype} cannot count on exactly: use double(), or register it "
                f"with persistent=False"
            )


def _norms(module: nn.Module) -> list[nn.Module]:
    """The BatchNorm layers that measure statistics in training."""
    layers = [layer for layer in module.modules() if isinstance(layer, batch_norms())]
    return [layer for layer in layers if layer.training and layer.running_mean is not None]


def _is_whole(buffer: Tensor) -> bool:
    return not (buffer.is_floating_point() or buffer.is_complex())


def _twin(module: nn.Module) -> nn.Module:
    """A copy of a module that shares its parameters and buffers."""
    shared = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module, {id(tensor): tensor for tensor in shared})


def _paths(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """All places in a module where each tensor stands, each place by one of its names."""
    names = {id(tensor): name for name, tensor in tensors.items()}
    found: dict[str, list[str]] = {name: [] for name in tensors}
    for owner, part in module.named_modules():
        for key, tensor in (
            *part.named_parameters(recurse=False, remove_duplicate=False),
            *part.named_buffers(recurse=False, remove_duplicate=False),
        ):
            if id(tensor) in names:
                found[names[id(tensor)]].append(f"{owner}.{key}".removeprefix("."))
    return found


class _Probe(nn.Module):
    """Runs a module and also returns its buffers, which it may have changed or replaced."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Inputs) -> tuple[Any, dict[str, Tensor]]:
        return call(self.module, inputs), dict(self.module.named_buffers())
