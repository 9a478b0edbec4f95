"""A linear layer and cross-entropy against one worker after another."""

from collections.abc import Iterator
from functools import partial

import torch

from partavg.engines.fused.comparison import Comparison, Setting, main
from partavg.engines.fused.head_loss import operation, reference

LAYERS = ((64, 256), (32, 5000))
"""Width and words; one of these is to be ignored."""
STEPS = 8


def comparisons(setting: Setting) -> Iterator[Comparison]:
    """One for each layer."""
    for width, words in LAYERS:
        count = setting.samples * STEPS
        targets = torch.randint(0, words, (setting.workers, count), device=setting.device)
        targets[:, ::3] = 7
        yield Comparison(
            f"{width} wide, {words} words",
            partial(operation.losses, words=targets, ignored=7),
            partial(reference.mean_losses, words=targets, ignored=7),
            (
                setting.activations(STEPS, width, gradient=False).flatten(1, 2).requires_grad_(),
                setting.parameters(words, width, scale=width**-0.5),
                setting.parameters(words),
            ),
        )


if __name__ == "__main__":
    main(comparisons)
