"""Models, images and data that make no sense together are refused, with a reason."""

import torch

from partavg.config import Config
from partavg.data.dataset import Dataset
from partavg.models import MODELS


def check_images(config: Config, data: Dataset) -> None:
    """Crops and flips, and data that has no images."""
    if data.train.inputs.dtype != torch.uint8 and (config.images.crop or config.images.flip):
        raise ValueError(
            f"images.crop and images.flip are for images, and {config.data.name} has none: "
            f"leave them out"
        )
    if data.train.inputs.dtype == torch.uint8 and config.images.crop >= min(data.shape[-2:]):
        raise ValueError(
            f"images.crop = {config.images.crop} can cut all of an image of {data.shape[-2]} × "
            f"{data.shape[-1]} away: use less, 4 is usual"
        )


def check_words(config: Config, data: Dataset) -> None:
    """Words are numbers, but only a model with a vocabulary can read them."""
    if not MODELS.is_built_in(config.model.name):
        return
    inputs, known = data.train.inputs, config.model.options.get("words")
    if inputs.dtype == torch.int64 and known is None:
        raise ValueError(
            f"model.name = {config.model.name!r} cannot read the words of {config.data.name}: "
            f"use lstm"
        )
    if known is not None and inputs.dtype == torch.int64 and inputs.max() >= known:
        raise ValueError(
            f"model.words = {known} is too few for {config.data.name}, which has words up to "
            f"{int(inputs.max())}: set data.words and model.words to the same"
        )
    if inputs.dtype != torch.int64 and known is not None:
        raise ValueError(
            f"model.name = {config.model.name!r} reads words, and {config.data.name} has none: "
            f"use a model for images"
        )
