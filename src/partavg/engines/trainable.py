"""Which modules can be trained as rows, and in one sentence why others cannot."""

import copy
from itertools import pairwise

import torch
from torch import Tensor, nn

from partavg.sentences import reason
from partavg.torch_internals import hooked_norm, is_compiled

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to train, checked: with values, of one dtype, none in another's memory."""
    _check_kind(module)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        _check_values(name, tensor)
    found = {k: p for k, p in module.named_parameters() if p.requires_grad}
    if not found:
        raise ValueError("the model has no trainable parameters: nothing to train or average")
    first = next(iter(found.values()))
    for name, parameter in found.items():
        if parameter.dtype not in _FLOATS:
            raise ValueError(
                f"parameter {name!r} is {parameter.dtype}: rows hold real numbers; keep its real "
                f"and imaginary part in a float parameter and use torch.view_as_complex"
            )
        if parameter.dtype != first.dtype:
            raise ValueError(
                f"parameter {name!r} is {parameter.dtype}, others are {first.dtype}: "
                f"rows hold one dtype; convert the model with .float()"
            )
    _check_memory(found)
    return found


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module; a ValueError if torch cannot make one."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise ValueError(
            f"the model cannot be copied for its workers, copy.deepcopy says: "
            f"{reason(error).rstrip('.')}; let it keep only parameters, buffers and detached "
            f"tensors"
        ) from error


def _check_kind(module: nn.Module) -> None:
    """That it is a module of plain layers, not one made by a compiler or a wrapper."""
    for name, part in module.named_modules():
        which = f"layer {name!r}" if name else "the model"
        if isinstance(part, torch.jit.ScriptModule):
            raise ValueError(
                f"{which} is a ScriptModule, whose parameters cannot be exchanged: give the "
                f"module that it was made from"
            )
        if is_compiled(part):
            raise ValueError(
                f"{which} was made by torch.compile, which keeps the addresses of parameters: "
                f"give the module that it was made from"
            )
        if isinstance(part, _WRAPPERS):
            raise ValueError(
                f"{which} is wrapped in {type(part).__name__}: give the module inside, .module"
            )
        if norm := hooked_norm(part):
            raise ValueError(
                f"{which} has torch.nn.utils.{norm}, whose weight is no parameter: use "
                f"torch.nn.utils.parametrizations.{norm}"
            )


def _check_values(name: str, tensor: Tensor) -> None:
    """That a parameter or buffer has values, not just a place for them."""
    what = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
    if nn.parameter.is_lazy(tensor):
        raise ValueError(f"{what} {name!r} has no shape yet: call the model on a batch once")
    if tensor.is_meta:
        raise ValueError(
            f"{what} {name!r} is on the meta device and has no values: make the model on a real "
            f"device, or call to_empty(device=...) and initialize it"
        )


def _check_memory(parameters: dict[str, nn.Parameter]) -> None:
    memory = sorted((*_extent(p), name) for name, p in parameters.items() if p.numel())
    for (_, stop, one), (start, _, other) in pairwise(memory):
        if start < stop:
            raise ValueError(
                f"parameters {one!r} and {other!r} share memory but are two parameters, so "
                f"workers would untie them: tie them by assigning the same nn.Parameter"
            )


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the one after its last."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()
