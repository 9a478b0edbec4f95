"""Pooling against torch's own."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn

from partavg.engines.fused import dispatch
from partavg.engines.fused.comparison import Comparison, Setting, main, rows_of
from partavg.engines.fused.dispatch import device_of
from partavg.engines.fused.pool import operation, reference

LAYERS: tuple[tuple[Any, int, int], ...] = (
    (nn.MaxPool2d(2), 32, 28),
    (nn.MaxPool2d(2, ceil_mode=True), 64, 7),
    (nn.MaxPool2d(3, 2, 1), 16, 16),
    (nn.AvgPool2d(2), 16, 16),
    (nn.AdaptiveAvgPool2d(1), 64, 8),
)
"""Layers, channels, size."""


def comparisons(setting: Setting) -> Iterator[Comparison]:
    """One for each layer."""
    for layer, channels, size in LAYERS:
        x = setting.activations(channels, size, size)
        way = dispatch.pool(layer, x.shape, x.dtype, device_of(x))
        yield Comparison(
            f"{layer}, {channels} channels, {size} x {size}, {way}",
            partial(operation.run, layer, rows_of(setting), ""),
            partial(reference.pool, layer),
            (x,),
        )


if __name__ == "__main__":
    main(comparisons)
