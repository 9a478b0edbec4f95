"""A bidirectional LSTM (Hochreiter and Schmidhuber, 1997) that classifies texts."""

import torch
from torch import Tensor, nn


class Reader(nn.Module):
    """Reads words in both directions and classifies by where the two readings end."""

    def __init__(self, words: int, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Words of each sample -> the classes' logits."""
        _, (last, _) = self.lstm(self.dropout(self.embedding(x)))
        logits: Tensor = self.linear(self.dropout(torch.cat([last[0], last[1]], 1)))
        return logits


def lstm(
    shape: tuple[int, ...],
    classes: int,
    *,
    words: int = 10_000,
    width: int = 256,
    dropout: float = 0.3,
) -> nn.Module:
    """Embedding, one LSTM layer in both directions, one dense layer: 3.6 M parameters.

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
    return Reader(words, width, classes, dropout)
