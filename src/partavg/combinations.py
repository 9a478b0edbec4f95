"""Models, images and data that make no sense together are refused, with a reason."""

from collections.abc import Sequence

import torch
from torch import Tensor

from partavg.config import Config, Metrics
from partavg.core.inputs import tensors
from partavg.data.dataset import Dataset
from partavg.losses import LOSSES
from partavg.models import MODELS


def has_images(data: Dataset) -> bool:
    """Whether inputs are images, kept as bytes."""
    inputs = data.train.inputs
    return isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 and not has_texts(data)


def has_texts(data: Dataset) -> bool:
    """Whether samples are texts, each token the target of the one before it."""
    return data.train.tokens is not None


def check_images(config: Config, data: Dataset) -> None:
    """Crops and flips, and data that has no images."""
    if not has_images(data) and (config.images.crop or config.images.flip):
        raise ValueError(
            f"images.crop and images.flip are for images, and {config.data.name} has none: "
            f"leave them out"
        )
    if has_images(data) and config.images.crop >= min(data.shape[-2:]):
        raise ValueError(
            f"images.crop = {config.images.crop} can cut all of an image of {data.shape[-2]} × "
            f"{data.shape[-1]} away: use less, 4 is usual"
        )


def check_shown(options: Metrics, local: Sequence[str] = ()) -> None:
    """What would show clients' models beside what a private run releases.

    Clients may measure what was released, but not what is their own.
    """
    for key in ("discrepancy_every", "round_losses_every", "local_accuracy", "clients_every"):
        released = key == "clients_every" and not local
        if (value := getattr(options, key)) and not released:
            raise ValueError(
                f"metrics.{key} = {value!r} shows what clients' models are, which privacy does not "
                f"protect: leave it out"
            )


def check_words(config: Config, data: Dataset) -> None:
    """Words are numbers, but only a model with a vocabulary can read them."""
    known = config.model.options.get("words")
    ours = MODELS.is_built_in(config.model.name)
    if ours and (has_texts(data) or config.model.name == "gpt"):
        _check_texts(config, data)
        return
    words = [tensor for tensor in tensors(data.train.inputs) if tensor.dtype == torch.int64]
    if words and known is None and ours:
        raise ValueError(
            f"model.name = {config.model.name!r} cannot read the words of {config.data.name}: "
            f"use lstm"
        )
    most = max((int(tensor.max()) for tensor in words), default=-1)
    if known is not None and most >= known:
        raise ValueError(
            f"model.words = {known} is too few for {config.data.name}, which has words up to "
            f"{most}: set data.words and model.words to the same"
        )
    if not words and known is not None and ours:
        raise ValueError(
            f"model.name = {config.model.name!r} reads words, and {config.data.name} has none: "
            f"use a model for images"
        )


def _check_texts(config: Config, data: Dataset) -> None:
    """The next token is said by a model of language alone, and nothing else is."""
    if config.model.name != "gpt":
        raise ValueError(
            f"model.name = {config.model.name!r} cannot say the next token of {config.data.name}: "
            f"use gpt"
        )
    if not has_texts(data) or not data.classes:
        raise ValueError(
            f"model.name = 'gpt' says the next token of a text, and {config.data.name} is none: "
            f"use text, king_james or imdb_text"
        )
    if LOSSES.is_built_in(config.loss.name) and config.loss.name != "next_token":
        raise ValueError(
            f"loss.name = {config.loss.name!r} is not for texts, and {config.data.name} is one: "
            f"use next_token"
        )
