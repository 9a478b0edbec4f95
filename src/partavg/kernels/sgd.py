"""A step of gradient descent in one pass over parameters, gradients and momentum."""
# mypy: ignore-errors

import triton
import triton.language as tl
from torch import Tensor

from partavg.kernels.launch import launch

_BLOCK = 512


def step_(
    params: Tensor,
    grads: Tensor,
    velocity: Tensor | None,
    *,
    lr: float,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> None:
    """Rows [m, n]: v ← ρv + g + λx;  x ← x − ηv, or for Nesterov x − η(g + λx + ρv)."""
    width = params.shape[1]
    launch(
        _step,
        (triton.cdiv(width, _BLOCK), len(params)),
        (params, grads, params if velocity is None else velocity),
        {"width": width, "stride": params.stride(0), "beside": grads.stride(0)},
        lr=lr,
        momentum=momentum,
        decay=decay,
        MOMENTUM=velocity is not None,
        NESTEROV=nesterov,
        BLOCK=_BLOCK,
        num_warps=8,
    )


@triton.jit(do_not_specialize=["width", "stride", "beside", "lr", "momentum", "decay"])
def _step(
    weights,
    grads,
    velocity,
    width,
    stride,
    beside,
    lr,
    momentum,
    decay,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = j < width
    place = row * stride + j
    x = tl.load(weights + place, mask=mask)
    way = tl.load(grads + row * beside + j, mask=mask) + decay * x
    if MOMENTUM:
        fast = momentum * tl.load(velocity + place, mask=mask) + way
        tl.store(velocity + place, fast, mask=mask)
        way = way + momentum * fast if NESTEROV else fast
    tl.store(weights + place, x - lr * way, mask=mask)
