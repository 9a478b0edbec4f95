"""Convolutions against one grouped convolution of torch's."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from partavg.engines.fused import dispatch
from partavg.engines.fused.comparison import Comparison, Setting, main
from partavg.engines.fused.convolution import reference
from partavg.engines.fused.convolution.case import Case, Window
from partavg.engines.fused.convolution.operation import convolve
from partavg.engines.fused.dispatch import device_of

LAYERS = (
    *((3, 16, 32, 3, 1), (16, 16, 32, 3, 1), (16, 32, 32, 3, 2), (32, 64, 16, 1, 2)),
    *((64, 64, 8, 3, 1), (32, 64, 14, 5, 1), (128, 128, 8, 3, 1), (128, 128, 16, 3, 2)),
    *((24, 32, 16, 3, 1), (16, 24, 16, 3, 1)),
)
"""Channels in and out, size, side and stride."""


def comparisons(setting: Setting) -> Iterator[Comparison]:
    """One for each layer."""
    for inputs, outputs, size, side, stride in LAYERS:
        window = Window((stride, stride), (side // 2, side // 2))
        x = setting.activations(inputs, size, size, gradient=inputs > 4)
        weight = setting.parameters(outputs, inputs, side, side, scale=1 / (side * inputs**0.5))
        case = Case.of(x, weight, None, window, gradient=x.requires_grad)
        way = dispatch.convolution(case, device_of(x))
        yield Comparison(
            f"{inputs} to {outputs} channels, {size} x {size}, {side} x {side}, stride {stride}, "
            f"{way}",
            partial(_operation, window=window),
            partial(reference.convolve, bias=None, window=window),
            (x, weight),
        )


def _operation(x: Tensor, weight: Tensor, window: Window) -> Tensor:
    return convolve(x, weight, None, window).y


if __name__ == "__main__":
    main(comparisons)
