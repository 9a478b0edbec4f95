"""Wide residual networks for 32 x 32 images (Zagoruyko and Komodakis, 2016)."""

from torch import Tensor, nn
from torch.nn import functional as F

from partavg.models.norm import Norm, norm_layer
from partavg.models.shape import image


class Block(nn.Module):
    """Norms and ReLUs before two 3 x 3 convolutions, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.norm1 = norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.projection: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add the input, or a projection of the activated input, to the two convolutions."""
        y = F.relu(self.norm1(x))
        shortcut = x if self.projection is None else self.projection(y)
        y = F.relu(self.norm2(self.conv1(y)))
        added: Tensor = shortcut + self.conv2(y)
        return added


def wide_resnet(
    shape: tuple[int, ...],
    classes: int,
    *,
    depth: int,
    width: int,
    norm: Norm = nn.BatchNorm2d,
) -> nn.Module:
    """WRN-depth-width, without dropout."""
    if depth < 10 or depth % 6 != 4:
        raise ValueError(f"depth {depth} is not 6 n + 4: use 10, 16, 22, 28 or more")
    if width < 1:
        raise ValueError(f"width {width} is below 1: it multiplies the channels of each layer")
    layers: list[nn.Module] = [nn.Conv2d(image(shape)[0], 16, 3, 1, 1, bias=False)]
    inputs = 16
    for stage, base in enumerate((16, 32, 64)):
        for block in range((depth - 4) // 6):
            stride = 2 if block == 0 and stage > 0 else 1
            layers.append(Block(inputs, width * base, stride, norm))
            inputs = width * base
    layers += [norm(inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def wrn16_8(
    shape: tuple[int, ...],
    classes: int,
    *,
    norm_eps: float = 1e-5,
    norm_momentum: float = 0.1,
    norm_groups: int = 0,
) -> nn.Module:
    """WRN-16-8: 11.0 M parameters for 10 classes."""
    norm = norm_layer(norm_eps, norm_momentum, norm_groups)
    return wide_resnet(shape, classes, depth=16, width=8, norm=norm)


def wrn28_10(
    shape: tuple[int, ...],
    classes: int,
    *,
    norm_eps: float = 1e-5,
    norm_momentum: float = 0.1,
    norm_groups: int = 0,
) -> nn.Module:
    """WRN-28-10: 36.5 M parameters for 10 classes."""
    norm = norm_layer(norm_eps, norm_momentum, norm_groups)
    return wide_resnet(shape, classes, depth=28, width=10, norm=norm)
