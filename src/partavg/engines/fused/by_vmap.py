"""What needs no kernel: torch.func.vmap runs it for all workers, and shapes hide their axis."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx.node import map_aggregate

from partavg.engines.fused.rows import Rows


def call(function: Callable[..., Any], rows: Rows, name: str, *args: Any, **options: Any) -> Any:
    """Call a pure function, or layer without parameters, for every worker, never in place."""
    if function is operator.iadd:
        function = operator.add
    if getattr(function, "inplace", False):
        function.inplace = False  # type: ignore[attr-defined]  # of the program's own copy
    given = args, {key: value for key, value in options.items() if key != "inplace"}
    leaves: list[Any] = []
    map_aggregate(given, leaves.append)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not tensors:
        return rows.for_all(function(*given[0], **given[1]))

    def one_worker(*own: Tensor) -> Any:
        rest = iter(own)
        filled = (next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        args, options = map_aggregate(given, lambda _: next(filled))
        return function(*args, **options)

    return vmap(one_worker)(*tensors)


def call_elementwise(
    function: Callable[..., Any], rows: Rows, name: str, x: Any, *args: Any, **options: Any
) -> Any:
    """Call what does the same to every number of a tensor: it needs no vmap."""
    if not isinstance(x, Tensor) or any(isinstance(arg, Tensor) for arg in args):
        return call(function, rows, name, x, *args, **options)
    if getattr(function, "inplace", False):
        function.inplace = False  # type: ignore[attr-defined]  # of the program's own copy
    options.pop("inplace", None)
    return function(x, *args, **options)


def flatten(layer: Any, rows: Rows, name: str, x: Tensor) -> Tensor:
    """What nn.Flatten does: its axes are one further back."""
    first, last = (axis + (axis >= 0) for axis in (layer.start_dim, layer.end_dim))
    return x.flatten(first, last)


def call_layer(layer: Any, rows: Rows, name: str, x: Tensor) -> Any:
    """A layer with parameters that is rare enough to have no operation of its own."""
    own = {key: rows.cast(rows.tensor_of(name, key)) for key, _ in layer.named_parameters()}
    return vmap(lambda some, x: torch.func.functional_call(layer, some, (x,)))(own, x)


def attribute(function: Any, rows: Rows, name: str, x: Tensor, attribute: str) -> Any:
    """What one worker sees of `x.shape` or the like."""
    if attribute in ("dtype", "device"):
        return getattr(x, attribute)
    return x.shape[1:] if attribute == "shape" else x.ndim - 1


def dim(function: Any, rows: Rows, name: str, x: Tensor) -> int:
    """The same for `x.dim()`."""
    return x.ndim - 1


def size(function: Any, rows: Rows, name: str, x: Tensor, dim: int | None = None) -> Any:
    """The same for `x.size()`, or one number of it."""
    return x.shape[1:] if dim is None else x.shape[1:][dim]
