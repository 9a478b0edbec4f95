"""What a model is called with: a tensor, several, or several by name."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""One input, several in the order of `forward`'s arguments, or several by their names."""


def tensors(inputs: Inputs) -> tuple[Tensor, ...]:
    """All tensors of some inputs.

    >>> import torch
    >>> [len(tensor) for tensor in tensors({"ids": torch.ones(3), "mask": torch.ones(3)})]
    [3, 3]
    """
    if isinstance(inputs, Tensor):
        return (inputs,)
    return tuple(inputs.values() if isinstance(inputs, Mapping) else inputs)


def each(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The same inputs with a function applied to every tensor."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {name: function(tensor) for name, tensor in inputs.items()}
    return tuple(map(function, inputs))


def call(module: Callable[..., Any], inputs: Inputs) -> Any:
    """What a module makes of inputs: several are its arguments, those with names by name."""
    if isinstance(inputs, Tensor):
        return module(inputs)
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs)


def count(inputs: Inputs) -> int:
    """How many samples there are."""
    return len(tensors(inputs)[0])


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device, without waiting for what the device is at."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
