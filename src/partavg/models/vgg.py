"""VGG networks (Simonyan and Zisserman, 2015) for small images."""

from torch import nn

from partavg.models.shape import image

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # configuration A


def vgg11(shape: tuple[int, ...], classes: int, *, batch_norm: bool = True) -> nn.Module:
    """VGG-11 with one dense layer: 9.2 M parameters for 10 classes.

    Pooling rounds sizes up, so that images of any size up to 32 x 32 end as one pixel.
    """
    channels, height, breadth = image(shape)
    if max(height, breadth) > 32:
        raise ValueError(
            f"images of {height} x {breadth} are too large for vgg11, which halves them five times "
            f"to get one pixel: use 32 x 32 or less"
        )
    layers: list[nn.Module] = []
    for widths in _STAGES:
        for width in widths:
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU())
            channels = width
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, classes))
