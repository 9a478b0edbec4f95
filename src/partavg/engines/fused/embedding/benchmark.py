"""Embeddings against one worker after another."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from partavg.engines.fused.comparison import Comparison, Setting, main, rows_of
from partavg.engines.fused.embedding import operation, reference

LAYERS = ((1000, 16, None), (20, 16, 0))
"""Words, width, and the word that is padding."""
STEPS = 20


def comparisons(setting: Setting) -> Iterator[Comparison]:
    """One for each layer."""
    for words, width, padding in LAYERS:
        sizes = setting.workers, setting.samples, STEPS
        yield Comparison(
            f"{words} words, {width} wide{'' if padding is None else ', padded'}",
            partial(_operation, setting, nn.Embedding(words, width, padding)),
            partial(reference.embedding, padding_idx=padding),
            (
                torch.randint(0, words, sizes, device=setting.device),
                setting.parameters(words, width),
            ),
        )


def _operation(setting: Setting, layer: nn.Embedding, words: Tensor, weight: Tensor) -> Tensor:
    return operation.run(layer, rows_of(setting, weight=weight), "", words)


if __name__ == "__main__":
    main(comparisons)
