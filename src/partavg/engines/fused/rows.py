"""What the layers of a program read of the workers, and the keys they draw from."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from partavg.engines.dropout import NEXT, KeyedDropout


class Rows:
    """Named parameters and buffers of some workers, [m, …] each, for one pass.

    `compute` is the dtype of activations and of the weights that multiply them.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        keys: Tensor,
        compute: torch.dtype,
    ) -> None:
        self._tensors = tensors
        self._keys = keys
        self._drawn = 0
        self.compute = compute
        self.count = len(keys)

    def tensor(self, name: str) -> Tensor:
        """A parameter or buffer as it is kept."""
        return self._tensors[name]

    def maybe(self, layer: str, name: str) -> Tensor | None:
        """A parameter or buffer of a layer, where it has one."""
        return self._tensors.get(f"{layer}.{name}" if layer else name)

    def cast(self, value: Tensor) -> Tensor:
        """A value as activations are computed; whole numbers stay what they are."""
        return value.to(self.compute) if value.is_floating_point() else value

    def dropout(self, function: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Dropout, with the masks that the other engines draw from the same keys."""
        kwargs = {**kwargs, "inplace": False}
        p = kwargs.get("p", args[0] if args else 0.5)
        if p == 0 or not kwargs.get("training", args[1] if len(args) > 1 else True):
            return x
        keys = self._keys + self._drawn * NEXT
        self._drawn += 1

        def drop(x: Tensor, key: Tensor) -> Tensor:
            with KeyedDropout(key):
                return function(x, *args[:2], **kwargs)

        return vmap(drop)(x, keys)
