"""What the layers of a program read of the workers, and the keys they draw from."""

from collections.abc import Mapping

import torch
from torch import Tensor

from partavg.engines.dropout import NEXT


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

    def tensor(self, name: str) -> Tensor:
        """A parameter or buffer as it is kept."""
        return self._tensors[name]

    def tensor_of(self, layer: str, name: str) -> Tensor:
        """A parameter or buffer of a layer, which must have it."""
        return self._tensors[f"{layer}.{name}" if layer else name]

    def maybe(self, layer: str, name: str) -> Tensor | None:
        """A parameter or buffer of a layer, where it has one."""
        return self._tensors.get(f"{layer}.{name}" if layer else name)

    def cast(self, value: Tensor) -> Tensor:
        """A value as activations are computed; whole numbers stay what they are."""
        return value.to(self.compute) if value.is_floating_point() else value

    def next_keys(self) -> Tensor:
        """Keys [m] for the next dropout of this pass: each draws from others."""
        keys = self._keys + self._drawn * NEXT
        self._drawn += 1
        return keys
