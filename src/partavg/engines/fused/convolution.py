"""Convolutions for all workers at once."""

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.nn import functional as F

from partavg.kernels.backend import uses_triton

if TYPE_CHECKING:
    from partavg.engines.fused.norm_triton import Measured
    from partavg.engines.fused.small import Normed

Pair = tuple[int, int]


class Convolved(NamedTuple):
    """Outputs, and inputs for their other users: so gradients are added up without a pass."""

    y: Tensor
    x: Tensor | None
    measured: "Measured | None" = None
    """Statistics of the outputs, where they cost nothing."""


def tiling(x: Tensor, layer: Any, weight: Tensor, *, back: bool) -> Any:
    """How the kernels for few channels cut a layer's work on x [m, n, c, h, w]; None if not.

    `back` is whether a gradient goes back to the input: images, with up to 4 channels, get none.
    """
    if not uses_triton(x):
        return None
    from partavg.engines.fused import conv_cuda, tiles

    plain = layer.bias is None and layer.dilation == (1, 1) and layer.groups == 1
    square = layer.stride[0] == layer.stride[1] and not isinstance(layer.padding, str)
    if not (plain and square and conv_cuda.usable(x)):
        return None
    found = tiles.tiling(x.movedim(2, -1), weight, layer.stride[0], layer.padding)
    return None if back and found is not None and found.GIVEN < found.C else found


def conv2d_small(x: "Tensor | Normed", weight: Tensor, tiling: Any) -> Convolved:
    """The same with those kernels; x may still have to be normalized."""
    from partavg.engines.fused import small

    return Convolved(*small.conv(x, weight, tiling))


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Convolved:
    """Convolve x [m, n, c, h, w] with the weights [m, k, c / groups, r, s] of each worker."""
    if uses_triton(x):
        from partavg.engines.fused import wide
        from partavg.engines.fused.conv_triton import Conv, usable

        if groups == 1 and wide.usable(x.movedim(2, -1), weight, stride, padding, dilation):
            return Convolved(*wide.Conv.apply(x, weight, bias))  # type: ignore[no-untyped-call]

        if usable(x, weight, stride, dilation, groups):
            both = Conv.apply(x, weight, bias, stride[0], padding)  # type: ignore[no-untyped-call]
            return Convolved(*both)
    low = weight.to(x.dtype)
    y = _grouped(x, low, stride, padding, dilation, groups)
    return Convolved(y if bias is None else y + bias.to(x.dtype)[:, None, :, None, None], x)


def _grouped(
    x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    """One convolution in which each worker is a group of channels."""
    workers, count = x.shape[:2]
    beside = x.transpose(0, 1).flatten(1, 2)  # [n, m · c, h, w]
    y = F.conv2d(beside, weight.flatten(0, 1), None, stride, padding, dilation, workers * groups)
    return y.view(count, workers, -1, *y.shape[2:]).transpose(0, 1)
