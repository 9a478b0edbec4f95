"""Dropout that depends on the worker and the step, and not on the engine."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from partavg.core.seeds import bits24
from partavg.torch_internals import body_of, dropouts

NEXT = -4658895280553007687  # any large odd number
_SATURATION = 1.7580993408473766  # λα of SELU: where alpha dropout puts what it drops


class KeyedDropout(TorchFunctionMode):
    """Draws every dropout mask from a key that changes from call to call.

    torch draws masks from one global stream, so that a worker's mask would depend on the workers
    computed before it. Here a worker drops the same units in every engine, in chunks of any size
    and in any process: also those of attention weights and between the layers of an LSTM.
    """

    def __init__(self, key: Tensor) -> None:
        self._key = key
        self.drops = False
        """Whether anything was dropped so far."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keyed = _KEYED.get(func)
        if keyed is None:
            return func(*args, **(kwargs or {}))
        return keyed(self, func, *args, **(kwargs or {}))

    def _kept(self, shape: tuple[int, ...], p: float) -> Tensor:
        """Which elements stay: another draw for every call."""
        self._key = self._key + NEXT  # int64 tensors wrap around
        self.drops = True
        return bits24(self._key, shape) >= round(p * 2**24)

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
        keep = self._kept((*input.shape[:drawn], *[1] * (input.ndim - drawn)), p)
        scaled = keep.to(input.dtype) * (1 / (1 - p) if p < 1 else 0.0)
        return input.mul_(scaled) if inplace else input * scaled

    def _builtin(self, func: Callable[..., Any], input: Tensor, p: float, train: bool) -> Tensor:
        return self._dropout(F.dropout, input, p, train)

    def _alpha_dropout(
        self,
        func: Callable[..., Any],
        input: Tensor,
        p: float = 0.5,
        training: bool = False,
        inplace: bool = False,
    ) -> Tensor:
        """Sets units to SELU's lowest value; mean and variance stay what they were."""
        if not training or p == 0:
            return input
        drawn = 2 if func is F.feature_alpha_dropout else input.ndim
        keep = self._kept((*input.shape[:drawn], *[1] * (input.ndim - drawn)), p).to(input.dtype)
        scale = ((_SATURATION**2 * p + 1) * (1 - p)) ** -0.5 if p < 1 else 0.0
        shift = ((keep - 1) * _SATURATION + _SATURATION * p) * scale
        return input.mul_(keep * scale).add_(shift) if inplace else input * (keep * scale) + shift

    def _attend(
        self,
        func: Callable[..., Any],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        options: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        if dropout_p == 0:
            return cast(Tensor, func(query, key, value, attn_mask, **options))
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (each.repeat_interleave(groups, -3) for each in (key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.transpose(-2, -1) * scale
        if is_causal:
            attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        blind = (scores == -math.inf).all(-1, keepdim=True)  # sees nothing, and gives 0
        weights = scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
        return self._dropout(F.dropout, weights, dropout_p) @ value

    def _attend_with_heads(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the function with this mode on, to see what it calls."""
        with self:
            return _HEADS(*args, **kwargs)

    def _recur(self, func: Callable[..., Any], *args: Any) -> tuple[Tensor, ...]:
        """Runs layer by layer what torch would run at once, to draw what it drops in between."""
        at = 3 if isinstance(args[3], list) else 2  # of the weights, after a packed batch's sizes
        x, *sizes, start = args[:at]
        weights, biases, layers, p, training, *rest = args[at:]
        if not training or p == 0:
            return cast(tuple[Tensor, ...], func(*args))
        ends = []
        for number in range(layers):
            own = weights[number * len(weights) // layers : (number + 1) * len(weights) // layers]
            before = _states(start, number, layers)
            x, *after = func(x, *sizes, before, own, biases, 1, 0.0, training, *rest)
            ends.append(after)
            if number + 1 < layers:
                x = self._dropout(F.dropout, x, p)
        return x, *(torch.cat(states) for states in zip(*ends, strict=True))


@contextmanager
def refused(module: nn.Module) -> Iterator[None]:
    """Refuse dropout for a while: in the backward pass a mask cannot be drawn again as it was."""
    kinds = dropouts()
    layers = [layer for layer in module.modules() if layer.training and _share(layer, kinds) > 0]
    handles = [layer.register_forward_pre_hook(refuse) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def refuse(*_: object) -> NoReturn:
    """Say why dropout is refused."""
    raise ValueError(
        "dropout is computed again in the backward pass, with another mask: "
        "use activation checkpointing only around layers without dropout"
    )


def _share(layer: Any, dropouts: tuple[type[nn.Module], ...]) -> float:
    """What a layer drops."""
    share: Any = 0.0
    if isinstance(layer, dropouts):
        share = layer.p
    elif isinstance(layer, nn.MultiheadAttention) or (
        isinstance(layer, nn.RNNBase) and layer.num_layers > 1
    ):
        share = layer.dropout
    return float(share)


def _states(start: Any, number: int, layers: int) -> Any:
    """Where one layer begins, in all its directions: of an LSTM that is two tensors."""
    if isinstance(start, tuple):
        return tuple(state.chunk(layers)[number] for state in start)
    return start.chunk(layers)[number]


_HEADS = body_of(F.multi_head_attention_forward)
_DROPOUTS = {F.dropout: None, F.dropout1d: 2, F.dropout2d: None, F.dropout3d: 4}
"""How many axes an input has that is one sample without a batch, where torch allows that."""
_KEYED: dict[Callable[..., Any], Callable[..., Any]] = {
    **dict.fromkeys(_DROPOUTS, KeyedDropout._dropout),
    torch.dropout: KeyedDropout._builtin,
    F.alpha_dropout: KeyedDropout._alpha_dropout,
    F.feature_alpha_dropout: KeyedDropout._alpha_dropout,
    F.scaled_dot_product_attention: KeyedDropout._attend,
    F.multi_head_attention_forward: KeyedDropout._attend_with_heads,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), KeyedDropout._recur),
}
"""What drops something, and what does so here instead."""
