"""Convolutions for all workers at once."""

from torch import Tensor
from torch.nn import functional as F

from partavg.engines.fused.backend import uses_triton

Pair = tuple[int, int]


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> tuple[Tensor, Tensor]:
    """Convolve x [m, n, c, h, w] with the weights [m, k, c / groups, r, s] of each worker.

    Also returns x, for its other users: so their gradients are added up without a pass of its own.
    """
    if uses_triton(x):
        from partavg.engines.fused.conv_triton import Conv, usable

        if usable(x, weight, stride, dilation, groups):
            both: tuple[Tensor, Tensor] = Conv.apply(  # type: ignore[no-untyped-call]
                x, weight, bias, stride[0], padding
            )
            return both
    low = weight.to(x.dtype)
    y = _grouped(x, low, stride, padding, dilation, groups)
    return (y if bias is None else y + bias.to(x.dtype)[:, None, :, None, None]), x


def _grouped(
    x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    """One convolution in which each worker is a group of channels."""
    workers, count = x.shape[:2]
    beside = x.transpose(0, 1).flatten(1, 2)  # [n, m · c, h, w]
    y = F.conv2d(beside, weight.flatten(0, 1), None, stride, padding, dilation, workers * groups)
    return y.view(count, workers, -1, *y.shape[2:]).transpose(0, 1)
