"""Dropout of each element by itself, with masks that are never in memory."""
# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

from partavg.kernels.bits import bits24
from partavg.kernels.launch import launch

_BLOCK = 1024


def drop(x: Tensor, keys: Tensor, p: float) -> Tensor:
    """Activations [m, n, …] with keys [m]; they stay as they lie, with channels last or not."""
    last = x.ndim > 3 and not x.is_contiguous() and x.movedim(2, -1).is_contiguous()
    x = x if last else x.contiguous()
    y = torch.empty_like(x)
    size = x[0].numel()
    scale = torch.tensor(1 / (1 - p) if p < 1 else 0.0, dtype=x.dtype).item()  # as torch rounds it
    launch(
        _drop,
        (triton.cdiv(size, _BLOCK), len(x)),
        (x, keys, y),
        {"size": size, "pixels": x[0, 0, 0].numel() if last else 1},
        least=round(p * 2**24),
        scale=scale,
        C=x.shape[2] if last else 1,
        BLOCK=_BLOCK,
    )
    return y


@triton.jit(do_not_specialize=["size", "pixels", "least", "scale"])
def _drop(
    x,
    keys,
    y,
    size,
    pixels,
    least,
    scale,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The elements of a worker, of which C channels lie together; bits are drawn as if none did."""
    worker = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    place = at // C
    drawn = (place // pixels * C + at % C) * pixels + place % pixels if C > 1 else at
    kept = bits24(tl.load(keys + worker), drawn + 1) >= least
    value = tl.load(x + worker * size + at, mask=mask, other=0).to(tl.float32)
    found = value * tl.where(kept, scale, 0.0)
    tl.store(y + worker * size + at, found.to(y.dtype.element_ty), mask=mask)
