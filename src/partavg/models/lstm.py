"""A bidirectional LSTM (Hochreiter and Schmidhuber, 1997) that classifies texts."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

Dropped = Literal["values", "channels"]
Init = Literal["torch", "keras"]


class Reader(nn.Module):
    """Reads words in both directions and classifies by where the two readings end."""

    def __init__(
        self, words: int, width: int, classes: int, dropout: float, dropped: Dropped
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.dropout = nn.Dropout(dropout)
        self.channels = nn.Dropout1d(dropout) if dropped == "channels" else None
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Words of each sample -> the classes' logits."""
        read = self.embedding(x)
        if self.channels is None:
            read = self.dropout(read)
        else:
            read = self.channels(read.transpose(1, 2)).transpose(1, 2)
        _, (last, _) = self.lstm(read)
        logits: Tensor = self.linear(self.dropout(torch.cat([last[0], last[1]], 1)))
        return logits


def lstm(
    shape: tuple[int, ...],
    classes: int,
    *,
    words: int = 10_000,
    width: int = 256,
    dropout: float = 0.3,
    dropped: Dropped = "values",
    init: Init = "torch",
) -> nn.Module:
    """Embedding, one LSTM layer in both directions, one dense layer: 3.6 M parameters.

    Of the embedding dropout drops single `values`, or whole `channels`, the same for all words of a
    text, as Keras's LSTM does. Parameters begin as torch or as `keras` draws them.

    Samples are integers below `words`. Short texts are padded at the front with 0, which is a word
    like any other: it is read, and its embedding is trained.
    """
    if len(shape) != 1:
        raise ValueError(
            f"samples of shape {shape} are no texts: use data whose shape is (length,)"
        )
    if words < 1:
        raise ValueError(f"a vocabulary of {words} words has no word: use 1 or more")
    if width < 1:
        raise ValueError(f"an LSTM of width {width} is no layer: use 1 or more")
    made = Reader(words, width, classes, dropout, dropped)
    if init == "keras":
        _draw_as_keras_(made)
    return made


@torch.no_grad()
def _draw_as_keras_(model: Reader) -> None:
    """Embeddings within ±0.05, Glorot's weights, orthogonal recurrences, a forget gate of 1.

    Keras draws the four gates as one matrix [inputs, 4 units] and has one bias; torch has two.
    """
    nn.init.uniform_(model.embedding.weight, -0.05, 0.05)
    width = model.lstm.hidden_size
    for name, tensor in model.lstm.named_parameters():
        if name.startswith("weight_ih"):
            bound = math.sqrt(6 / (tensor.shape[1] + tensor.shape[0]))
            nn.init.uniform_(tensor, -bound, bound)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(tensor)
        else:
            nn.init.zeros_(tensor)
            if name.startswith("bias_ih"):
                tensor[width : 2 * width] = 1.0  # torch's order: input, forget, cell, output
    nn.init.xavier_uniform_(model.linear.weight)
    nn.init.zeros_(model.linear.bias)
