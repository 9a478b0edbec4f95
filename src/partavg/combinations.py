"""Settings that make no sense together are refused, with a reason."""

import torch

from partavg.backends.planner import check_needs
from partavg.config import Config
from partavg.core.solver import Solver
from partavg.core.trial import check_abilities
from partavg.data.dataset import Dataset


def check_solver(config: Config, made: Solver) -> None:
    """What a solver says that it needs of the other workers."""
    check_abilities(made)
    check_needs(
        made,
        put_away=_models_put_away(config),
        uneven=config.pace.name != "even",
        delay=config.averaging.delay,
        called=f"solver.name = {config.solver.name!r}",
    )


def check_adapt(config: Config) -> None:
    """Intervals that change, and models that are put away meanwhile."""
    if _models_put_away(config):
        raise ValueError(
            f"adapt.name = {config.adapt.name!r} cuts models anew, but with "
            f"participation.redistribution = 'none' some are put away: use permute or average"
        )


def _models_put_away(config: Config) -> bool:
    return config.participation.redistribution == "none" and config.participation.every > 0


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
