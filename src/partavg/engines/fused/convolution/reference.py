"""Convolutions in plain torch: what runs without kernels, and what they are compared with."""

from torch import Tensor
from torch.nn import functional as F

from partavg.engines.fused.convolution.case import Window


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    """One convolution of x [m, n, c, h, w] in which each worker is a group of channels."""
    workers, count = x.shape[:2]
    beside = x.transpose(0, 1).flatten(1, 2)  # [n, m · c, h, w]
    y = F.conv2d(
        beside,
        weight.to(x.dtype).flatten(0, 1),
        None,
        window.stride,
        window.rim,
        window.dilation,
        workers * window.groups,
    )
    y = y.view(count, workers, -1, *y.shape[2:]).transpose(0, 1)
    return y if bias is None else y + bias.to(x.dtype)[:, None, :, None, None]
