"""The convolutional network with dropout that benchmarks of federated learning share."""

from torch import nn

from partavg.models.shape import image


def dropout_cnn(shape: tuple[int, ...], classes: int, *, width: int = 128) -> nn.Module:
    """Two 3 x 3 convolutions without padding, pooling, dropout, two dense layers; Glorot's start.

    From Reddi et al. (2021), for EMNIST; in pfl-research's benchmark for CIFAR-10, where it has
    1,626,442 parameters.
    """
    if width < 1:
        raise ValueError(f"a dense layer of width {width} is no layer: use 1 or more")
    channels, height, breadth = image(shape)
    layers = nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((breadth - 4) // 2), width),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(width, classes),
    )
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return layers
