"""From stored images to what a model sees: normalized, and when training cropped and flipped."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from partavg.core.arguments import check_choice, check_flag, check_kind, check_whole
from partavg.core.seeds import bits24, fold
from partavg.kernels.backend import uses_triton
from partavg.sentences import shown

Normalize = Literal["channel", "pixel", "none"]

_AUGMENT = fold(0, "augment")  # other bits than dropout draws from the same keys
_PIECE = 1 << 18  # numbers, so that they stay in the cache


@dataclass(frozen=True, slots=True)
class Images:
    """Subtracts `mean`, divides by `deviation`; then pads by `crop`, crops back, flips.

    All on the images' own device and for all workers at once. What is padded is 0, the mean.
    Crops and flips are drawn from a key per worker and step.

    >>> stored = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    >>> Images.fit(stored)(stored).flatten()
    tensor([-1.,  1.])
    """

    mean: Float[Tensor, "*c"]
    deviation: Float[Tensor, "*c"]
    crop: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "deviation"):
            given = getattr(self, name)
            check_kind(name, given, Tensor, "a tensor of floating point")
            if not given.is_floating_point() or not given.numel() or not given.isfinite().all():
                raise ValueError(f"{name} {shown(given)} is not of finite numbers: give such")
        if not bool((self.deviation > 0).all()):
            raise ValueError(f"deviation {shown(self.deviation)}: give numbers above 0")
        check_whole("crop", self.crop)
        check_flag("flip", self.flip)
        if self.crop < 0:
            raise ValueError(f"crop {self.crop} is below 0: it is the width of the padding")

    @classmethod
    def fit(
        cls,
        images: Any,
        *,
        normalize: str = "channel",
        crop: int = 0,
        flip: bool = False,
    ) -> "Images":
        """With the mean and deviation of each channel, or of each pixel, of the images."""
        if not isinstance(images, Tensor) or images.dtype != torch.uint8 or images.ndim != 4:
            shape = f"{images.dtype} {list(images.shape)}" if hasattr(images, "shape") else "none"
            raise ValueError(
                f"images of bytes are normalized, uint8 [n, channels, height, width], and these "
                f"are {shape}: give such a tensor"
            )
        if not images.numel():
            raise ValueError(f"there are no images in {list(images.shape)}: give some")
        check_choice("normalize", normalize, get_args(Normalize))
        if normalize == "none":
            mean, deviation = torch.zeros(1), torch.full((1,), 255.0)
        else:
            mean, deviation = _statistics(images, (0, 2, 3) if normalize == "channel" else (0,))
        return cls(mean.to(images.device), deviation.to(images.device), crop, flip)

    def to(self, device: torch.device) -> "Images":
        """The same for images on another device."""
        return replace(self, mean=self.mean.to(device), deviation=self.deviation.to(device))

    def __call__(
        self, images: UInt8[Tensor, "*m n c h w"], keys: Int[Tensor, "*m"] | None = None
    ) -> Float[Tensor, "*m n c h w"]:
        """Normalize; augment as well where keys are given."""
        if not isinstance(images, Tensor) or images.dtype != torch.uint8 or images.ndim < 4:
            raise ValueError(
                f"images {shown(images)} are not of bytes: give uint8 [n, channels, height, width]"
            )
        augments = keys is not None and (self.crop or self.flip)
        if keys is not None and augments and images.ndim == 5 and uses_triton(images):
            from partavg.kernels.images import augment

            given = self.mean, self.deviation
            return augment(images, keys + _AUGMENT, *given, crop=self.crop, flip=self.flip)
        # In place: the images of all workers together are the largest tensor of the data path.
        normal = images.to(self.mean.dtype).sub_(self.mean).div_(self.deviation)
        if keys is None or not augments:
            return normal
        return self._augment(normal, keys)

    def _augment(self, images: Tensor, keys: Tensor) -> Tensor:
        count, (height, width) = images.shape[-4], images.shape[-2:]
        drawn = bits24(keys + _AUGMENT, (3, count)).flatten(0, -3)  # [m, 3, n]
        down, right, flip = drawn.transpose(0, 1).flatten(1)  # each [m · n]
        rows = self._window(down, height)
        columns = self._window(right, width)
        if self.flip:
            columns = torch.where(flip[:, None] % 2 == 1, columns.flip(1), columns)
        inside = _within(rows, height)[:, :, None] & _within(columns, width)[:, None]
        index = (rows.clamp(0, height - 1) * width)[:, :, None] + columns.clamp(0, width - 1)[
            :, None
        ]
        flat = images.view(-1, images.shape[-3], height * width)
        moved = flat.gather(2, index.view(-1, 1, height * width).expand_as(flat))
        return moved.mul_(inside.view(-1, 1, height * width)).view(images.shape)

    def _window(self, drawn: Tensor, size: int) -> Tensor:
        """Where each row, or column, of an image comes from [m · n, size]."""
        offset = drawn % (2 * self.crop + 1) - self.crop
        return offset[:, None] + torch.arange(size, device=drawn.device)


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)


def _statistics(images: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and deviation over some axes, in pieces; a pixel that never changes has deviation 1."""
    total = square = torch.zeros((), dtype=torch.float64)
    for piece in torch.split(images.cpu(), max(1, _PIECE // images[0].numel())):
        values = piece.double()
        total = total + values.sum(axes, keepdim=True)[0]
        square = square + values.square().sum(axes, keepdim=True)[0]
    count = images.numel() / total.numel()
    mean = total / count
    deviation = (square / count - mean.square()).clamp(min=0).sqrt()
    deviation[deviation == 0] = 1.0
    return mean.float(), deviation.float()
