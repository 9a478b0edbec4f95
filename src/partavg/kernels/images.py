"""Images normalized, cropped and flipped in one pass."""
# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

from partavg.kernels.bits import bits24
from partavg.kernels.launch import launch


def augment(
    images: Tensor, keys: Tensor, mean: Tensor, deviation: Tensor, *, crop: int, flip: bool
) -> Tensor:
    """What `Images` makes of bytes [m, n, c, h, w] with keys [m], in the mean's dtype."""
    workers, count, channels, height, width = images.shape
    out = torch.empty(images.shape, dtype=mean.dtype, device=images.device)
    pixel = mean.numel() > channels
    launch(
        _augment,
        (workers * count, triton.cdiv(channels * height * width, 1024)),
        (images.contiguous(), keys.contiguous(), mean.contiguous(), deviation.contiguous(), out),
        {"count": count, "channels": channels, "height": height, "width": width},
        shared=mean.numel() == 1,
        PIXEL=pixel,
        CROP=crop,
        FLIP=flip,
        BLOCK=1024,
    )
    return out


@triton.jit(do_not_specialize=["count", "channels", "height", "width"])
def _augment(
    images,
    keys,
    mean,
    deviation,
    out,
    count,
    channels,
    height,
    width,
    shared: tl.constexpr,
    PIXEL: tl.constexpr,
    CROP: tl.constexpr,
    FLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    key = tl.load(keys + image // count)
    n = image % count
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size = channels * height * width
    column = i % width
    row = (i // width) % height
    channel = i // (width * height)
    if FLIP:
        flipped = bits24(key, 2 * count + n + 1) % 2 == 1
        column = tl.where(flipped, width - 1 - column, column)
    row += bits24(key, n + 1) % (2 * CROP + 1) - CROP
    column += bits24(key, count + n + 1) % (2 * CROP + 1) - CROP
    inside = (i < size) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    place = (channel * height + row) * width + column
    value = tl.load(images + image * size + place, mask=inside, other=0).to(tl.float32)
    at = place if PIXEL else (channel * 0 if shared else channel)
    center = tl.load(mean + at, mask=inside, other=0.0)
    scale = tl.load(deviation + at, mask=inside, other=1.0)
    tl.store(out + image * size + i, tl.where(inside, (value - center) / scale, 0.0), mask=i < size)
