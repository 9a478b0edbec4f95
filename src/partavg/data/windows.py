"""Texts as samples: windows of tokens, and for each token the one after it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.arguments import check_whole
from partavg.data.dataset import Dataset
from partavg.data.samples import Samples


class Part(NamedTuple):
    """The tokens to train or to test on, one document after the other."""

    tokens: Tensor
    starts: Int[Tensor, "d"]
    """Where each document begins."""
    sources: Int[Tensor, "d"]
    """The number of what each document is from."""


def windowed(
    train: Part,
    test: Part,
    words: int,
    *,
    context: int,
    stride: int = 0,
    bytes_per_token: float | None = None,
    called: tuple[str, str] = ("text", "text"),
) -> Dataset:
    """Windows of `context` tokens, a new one every `stride`, by default one after the other.

    They are views: inputs and targets together take no more memory than the tokens. A window may
    begin in one document and end in the next, and belongs to the source in which it begins.
    """
    check_whole("context", context, 2)
    check_whole("stride", stride, 0)
    parts: Sequence[tuple[str, str, Part, int]] = (
        ("training", called[0], train, stride or context),
        ("test", called[1], test, context),
    )
    samples, owners = [], []
    for what, name, part, apart in parts:
        if len(part.tokens) <= context:
            raise ValueError(
                f"the {what} text of {name} has {len(part.tokens)} tokens, and a window of "
                f"context {context} takes {context + 1}: give more text, or a shorter context"
            )
        rows = part.tokens.unfold(0, context + 1, apart)
        samples.append(Samples(rows[:, :-1], rows[:, 1:]))
        documents = torch.searchsorted(part.starts, torch.arange(len(rows)) * apart, right=True)
        owners.append(part.sources[documents - 1])
    trained, tested = samples
    return Dataset(trained, tested, words, owners[0], owners[1], bytes_per_token)
