"""A step of Adam in one pass over parameters, gradients and both moments."""
# mypy: ignore-errors

import triton
import triton.language as tl
from torch import Tensor

from partavg.kernels.launch import launch

_BLOCK = 1024


def step_(
    params: Tensor,
    grads: Tensor,
    mean: Tensor,
    square: Tensor,
    scales: Tensor,
    *,
    shrink: float,
    decay: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """Rows [m, n]: x ← shrink x, g ← g + decay x, moments as in `Adam`, x ← x − a m / (b √v + ε).

    The scales [2, m] are a and b of each row, in float32.
    """
    width = params.shape[1]
    launch(
        _step,
        (triton.cdiv(width, _BLOCK), len(params)),
        (params, grads, mean, square, scales),
        {
            "width": width,
            "stride": params.stride(0),
            "beside": grads.stride(0),
            "mean_stride": mean.stride(0),
            "square_stride": square.stride(0),
        },
        shrink=shrink,
        decay=decay,
        beta1=beta1,
        rest1=1 - beta1,
        beta2=beta2,
        rest2=1 - beta2,
        eps=eps,
        BLOCK=_BLOCK,
        num_warps=8,
    )


_SIZES = ["width", "stride", "beside", "mean_stride", "square_stride"]
_NUMBERS = ["shrink", "decay", "beta1", "rest1", "beta2", "rest2", "eps"]


@triton.jit(do_not_specialize=_SIZES + _NUMBERS)
def _step(
    weights,
    grads,
    means,
    squares,
    scales,
    width,
    stride,
    beside,
    mean_stride,
    square_stride,
    shrink,
    decay,
    beta1,
    rest1,
    beta2,
    rest2,
    eps,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    rows = tl.num_programs(1)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = j < width
    x = tl.load(weights + row * stride + j, mask=mask)
    g = tl.load(grads + row * beside + j, mask=mask) + decay * x
    mean = tl.load(means + row * mean_stride + j, mask=mask)
    square = tl.load(squares + row * square_stride + j, mask=mask)
    mean = mean + rest1 * (g - mean)
    square = beta2 * square + rest2 * g * g
    way = mean / (tl.load(scales + rows + row) * tl.sqrt(square) + eps)
    tl.store(means + row * mean_stride + j, mean, mask=mask)
    tl.store(squares + row * square_stride + j, square, mask=mask)
    tl.store(weights + row * stride + j, shrink * x - tl.load(scales + row) * way, mask=mask)
