"""Dropout that depends on the worker and the step, and not on the engine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from partavg.core.seeds import bits24
from partavg.torch_internals import dropouts

NEXT = -4658895280553007687  # any large odd number


class KeyedDropout(TorchFunctionMode):
    """Draws every dropout mask from a key that changes from call to call.

    torch draws masks from one global stream, so that a worker's mask would depend on the workers
    computed before it. Here a worker drops the same units in every engine, in chunks of any size
    and in any process.
    """

    def __init__(self, key: Tensor) -> None:
        self._key = key

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _DROPOUTS:
            return self._dropout(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _dropout(
        self,
        func: Callable[..., Any],
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return input
        # Plain dropout draws for every element, the others for every channel of every sample.
        drawn = input.ndim if func is F.dropout else 1 if input.ndim == _DROPOUTS[func] else 2
        shape = *input.shape[:drawn], *[1] * (input.ndim - drawn)
        self._key = self._key + NEXT  # another one for every call; int64 tensors wrap around
        keep = bits24(self._key, shape) >= round(p * 2**24)
        scaled = keep.to(input.dtype) * (1 / (1 - p) if p < 1 else 0.0)
        return input.mul_(scaled) if inplace else input * scaled


@contextmanager
def refused(module: nn.Module) -> Iterator[None]:
    """Refuse dropout for a while: in the backward pass a mask cannot be drawn again as it was."""

    def refuse(*_: object) -> None:
        raise ValueError(
            "dropout is computed again in the backward pass, with another mask: "
            "use activation checkpointing only around layers without dropout"
        )

    layers = [layer for layer in module.modules() if isinstance(layer, dropouts())]
    handles = [layer.register_forward_pre_hook(refuse) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


_DROPOUTS = {F.dropout: None, F.dropout1d: 2, F.dropout2d: None, F.dropout3d: 4}
"""How many axes an input has that is one sample without a batch, where torch allows that."""
