"""What models expect of the shape of a sample."""


def image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width; a ValueError if samples are no images."""
    if len(shape) != 3:
        raise ValueError(
            f"samples of shape {shape} are no images: use a model for such data, like lstm for "
            f"texts, or mlp"
        )
    channels, height, width = shape
    return channels, height, width
