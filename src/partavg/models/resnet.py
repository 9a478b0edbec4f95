"""Residual networks for 32 x 32 images (He et al., 2016)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.models.norm import Norm, norm_layer
from partavg.models.shape import image


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, projection: bool, norm: Norm
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if projection:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs)
            )
        elif stride != 1:
            self.shortcut = Pad(outputs - inputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut to the two convolutions."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class Pad(nn.Module):
    """The parameter-free shortcut: every other pixel, and zeros for the new channels."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels = channels
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Subsample and pad."""
        x = x[:, :, :: self.stride, :: self.stride]
        zeros = torch.zeros_like(x[:, :1]).expand(-1, self.channels // 2, -1, -1)
        return torch.cat([zeros, x, zeros], 1)


def resnet20(
    shape: tuple[int, ...],
    classes: int,
    *,
    projection: bool = True,
    norm_eps: float = 1e-5,
    norm_momentum: float = 0.1,
    norm_groups: int = 0,
    zero_gamma: bool = False,
) -> nn.Module:
    """ResNet-20.

    With `projection`, the shortcut of the first block of each stage, the first stage too, is a
    1 x 1 convolution with BatchNorm; without, it is free of parameters.
    With `norm_groups`, GroupNorm with so many groups takes the place of BatchNorm.
    With `zero_gamma`, the last BatchNorm of each block starts with weight 0, so that every block
    starts as its shortcut.
    """
    norm = norm_layer(norm_eps, norm_momentum, norm_groups)
    layers: list[nn.Module] = [
        nn.Conv2d(image(shape)[0], 16, 3, 1, 1, bias=False),
        norm(16),
        nn.ReLU(),
    ]
    inputs = 16
    for stage, width in enumerate((16, 32, 64)):
        for block in range(3):
            first = block == 0
            stride = 2 if first and stage > 0 else 1
            made = Block(inputs, width, stride, projection and first, norm)
            if zero_gamma:
                nn.init.zeros_(made.norm2.weight)
            layers.append(made)
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
