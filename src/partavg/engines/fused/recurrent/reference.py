"""LSTM layers in plain torch, one worker after another."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Ends = tuple[Tensor, Tensor]
"""The hidden states and the cell states."""


def lstm(
    layer: nn.LSTM, weights: Sequence[Tensor], x: Tensor, start: Ends | None
) -> tuple[Tensor, Ends]:
    """What nn.LSTM returns for x [m, n, t, e] (or [m, t, n, e]); weights in the layer's order."""
    directions = 2 if layer.bidirectional else 1
    if start is None:
        count = x.shape[1] if layer.batch_first else x.shape[2]
        zeros = x.new_zeros(len(x), layer.num_layers * directions, count, layer.hidden_size)
        start = zeros, zeros
    rounded = [weight.to(x.dtype) for weight in weights]
    options = layer.bias, layer.num_layers, 0.0, layer.training, layer.bidirectional
    found = [
        torch.lstm(own, ends, list(some), *options, layer.batch_first)
        for own, ends, some in zip(
            x, zip(*start, strict=True), zip(*rounded, strict=True), strict=True
        )
    ]
    outputs, hiddens, cells = (torch.stack(each) for each in zip(*found, strict=True))
    return outputs, (hiddens, cells)
