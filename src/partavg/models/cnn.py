"""The convolutional network of LEAF (Caldas et al., 2018) for 28 x 28 characters."""

from torch import nn

from partavg.models.shape import image


def cnn(shape: tuple[int, ...], classes: int, *, width: int = 2048) -> nn.Module:
    """Two 5 x 5 convolutions with pooling, two dense layers: 6.6 M parameters for 62 classes."""
    if width < 1:
        raise ValueError(f"a dense layer of width {width} is no layer: use 1 or more")
    channels, height, breadth = image(shape)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (breadth // 4), width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )
