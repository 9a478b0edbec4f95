"""LSTM layers for vmap, which cannot run the fused kernels that torch has for them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Ends = tuple[Tensor, Tensor]
"""The hidden state and the cell state of all layers and directions."""


class UnfusedLSTM(TorchFunctionMode):
    """Computes every LSTM step by step, from operations that can be batched on any device."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.lstm and not isinstance(args[1], Tensor):  # no packed sequence
            return _lstm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _lstm(
    inputs: Tensor,
    start: Ends,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """What torch.lstm computes: the outputs of the last layer, then where all readings end."""
    x = inputs.transpose(0, 1) if batch_first else inputs
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    ends: list[Ends] = []
    for layer in range(layers):
        outputs: list[Tensor] = []
        for direction in range(directions):
            number = len(ends)
            own = weights[number * each : (number + 1) * each]
            state = start[0][number], start[1][number]
            hidden, state = _read(x.flip(0) if direction else x, state, own, has_biases)
            outputs.append(hidden.flip(0) if direction else hidden)
            ends.append(state)
        x = torch.cat(outputs, 2)
        if layer + 1 < layers:
            x = F.dropout(x, dropout, training)
    hidden_ends, cell_ends = (torch.stack(states) for states in zip(*ends, strict=True))
    return x.transpose(0, 1) if batch_first else x, hidden_ends, cell_ends


def _read(
    x: Tensor, state: Ends, weights: Sequence[Tensor], has_biases: bool
) -> tuple[Tensor, Ends]:
    """One layer in one direction: the hidden states of all steps, and the last states."""
    from_input, from_hidden, *rest = weights
    biases, projection = (rest[:2], rest[2:]) if has_biases else ([], rest)
    # One matrix product: with a batch of weights, torch would copy them for every step.
    given = x.flatten(0, 1) @ from_input.t()
    if biases:
        given = given + torch.add(*biases)
    recurrent = from_hidden.t().contiguous()  # used in every step: laid out for it once
    hidden, cell = state
    outputs = []
    for step in given.view(*x.shape[:2], -1).unbind():
        into, forget, new, out = (step + hidden @ recurrent).chunk(4, 1)
        cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
        hidden = out.sigmoid() * cell.tanh()
        if projection:
            hidden = hidden @ projection[0].t()
        outputs.append(hidden)
    return torch.stack(outputs), (hidden, cell)
