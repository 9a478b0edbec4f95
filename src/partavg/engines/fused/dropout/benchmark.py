"""Dropout against one worker after another."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.engines.fused.comparison import Comparison, Setting, main, rows_of
from partavg.engines.fused.dropout import operation, reference

LAYERS: tuple[tuple[Any, Any, tuple[int, ...]], ...] = (
    (nn.Dropout(0.5), F.dropout, (512,)),
    (nn.Dropout(0.25), F.dropout, (64, 14, 14)),
    (nn.Dropout2d(0.3), F.dropout2d, (32, 8, 8)),
)
"""Layers, their functions, and shapes of a sample."""


def comparisons(setting: Setting) -> Iterator[Comparison]:
    """One for each layer."""
    keys = torch.arange(setting.workers, device=setting.device)
    for layer, function, shape in LAYERS:
        yield Comparison(
            f"{layer} of {' x '.join(map(str, shape))}",
            partial(_operation, setting, layer),
            partial(reference.dropout, function, keys=keys, p=layer.p),
            (setting.activations(*shape),),
        )


def _operation(setting: Setting, layer: nn.Module, x: Tensor) -> Any:
    return operation.run(layer, rows_of(setting), "", x)


if __name__ == "__main__":
    main(comparisons)
