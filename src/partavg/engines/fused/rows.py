"""What the layers of a program read of the workers, and the keys they draw from."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from partavg.engines.dropout import NEXT
from partavg.engines.fused.precision import cast


class Places(NamedTuple):
    """Where a convolution may write the gradients of its weights, and of a norm before it."""

    weight: Tensor | None = None
    norm: tuple[Tensor, Tensor] | None = None
    """Of its weight and bias."""
    tickets: Tensor | None = None
    """Zeros [2, m], and zeros again after a pass, by which blocks of a kernel know the last one."""


NOWHERE = Places()


class Rows:
    """Named parameters and buffers of some workers, [m, …] each, for one pass.

    `compute` is the dtype of activations and of the weights that multiply them. `gradients` is
    where the gradients of some parameters may be written, by the parameters' first names; there are
    `tickets` [n, 2, m] for n convolutions. With `recompute` activations of pieces are computed
    twice, not kept.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        keys: Tensor,
        compute: torch.dtype,
        gradients: Mapping[str, Tensor] | None = None,
        tickets: Tensor | None = None,
        *,
        recompute: bool = False,
    ) -> None:
        self._tensors = tensors
        self._keys = keys
        self._gradients = gradients or {}
        self._tickets: Iterator[Tensor] = iter(()) if tickets is None else iter(tickets)
        self.compute = compute
        self.recompute = recompute

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self._keys)

    def has(self, name: str) -> bool:
        """Whether there is such a parameter or buffer."""
        return name in self._tensors

    def tensor(self, name: str) -> Tensor:
        """A parameter or buffer as it is kept."""
        return self._tensors[name]

    def tensor_of(self, layer: str, name: str) -> Tensor:
        """A parameter or buffer of a layer, which must have it."""
        return self._tensors[f"{layer}.{name}" if layer else name]

    def maybe(self, layer: str, name: str) -> Tensor | None:
        """A parameter or buffer of a layer, where it has one."""
        return self._tensors.get(f"{layer}.{name}" if layer else name)

    def gradient_of(self, layer: str, name: str) -> Tensor | None:
        """Where the gradient of a layer's parameter is to be written, if anywhere."""
        return self._gradients.get(f"{layer}.{name}" if layer else name)

    def places(self, convolution: str, norm: str | None = None) -> Places:
        """Where the gradients of a convolution and of a norm before it may be written."""
        both = None if norm is None else self.norm_places(norm)
        return Places(self.gradient_of(convolution, "weight"), both, next(self._tickets, None))

    def norm_places(self, norm: str) -> tuple[Tensor, Tensor] | None:
        """Where those of a norm's weight and bias may be written, if both may."""
        weight, bias = self.gradient_of(norm, "weight"), self.gradient_of(norm, "bias")
        return None if weight is None or bias is None else (weight, bias)

    def for_all(self, value: Any) -> Any:
        """What is the same for all workers, as everything else: [m, …]; never a copy."""
        if isinstance(value, tuple | list):
            return type(value)(map(self.for_all, value))
        return value.expand(self.workers, *value.shape) if isinstance(value, Tensor) else value

    def cast(self, value: Tensor) -> Tensor:
        """A value as activations are computed."""
        return cast(value, self.compute)

    def next_keys(self) -> Tensor:
        """Keys [m] for the next dropout of this pass: each draws from others."""
        keys = self._keys
        self._keys = keys + NEXT  # int64 tensors wrap around
        return keys

    def again(self, run: Callable[[], Any]) -> Any:
        """What a function gives, which is called once more for its gradients with `recompute`."""
        if not self.recompute:
            return run()
        keys = self._keys

        def same() -> Any:
            self._keys = keys  # the same masks of dropout
            return run()

        return checkpoint(same, use_reentrant=False, preserve_rng_state=False)
