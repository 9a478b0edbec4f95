"""A larger budget for a run that has one: it goes on beyond the end it was given."""

from dataclasses import replace

from partavg import build, checkpoint
from partavg.config import Config
from partavg.data.dataset import Dataset
from partavg.folder import RunFolder


def larger(folder: RunFolder, stored: Config, wanted: Config, data: Dataset) -> Config | None:
    """The config of the run in a folder with the larger budget wanted; None if it is no other.

    A ValueError where such a run could not end as if it had had that budget from the start.
    """
    old, new = build.steps(stored, data), build.steps(wanted, data)
    if new == old:
        return None
    if new < old:
        raise ValueError(
            f"{folder.path} has a budget of {old} steps, {new} are fewer: a run can go on, but not "
            f"be shortened; give {old} or more, or another --out"
        )
    training = replace(stored.training, steps=wanted.training.steps, epochs=wanted.training.epochs)
    longer = replace(stored, training=training)
    _check_rates(stored, longer, old, data)
    if build.freeze_at(stored, data) != build.freeze_at(longer, data):
        raise ValueError(
            f"averaging.freeze_at = {stored.averaging.freeze_at} is a share of the budget: with "
            f"the larger one statistics would have been frozen later; begin again with the larger "
            f"budget and another --out"
        )
    if folder.finished and checkpoint.latest_step(folder.checkpoints) is None:
        raise ValueError(
            f"{folder.path} is finished and kept no checkpoint to go on from: begin again with "
            f"checkpoints.final = true and another --out, or --force"
        )
    return longer


def _check_rates(stored: Config, longer: Config, steps: int, data: Dataset) -> None:
    """Raise a ValueError if the steps so far would have been others with the larger budget."""
    was, would_be = build.rate(stored, data), build.rate(longer, data)
    if was == would_be:
        return
    remedy = "begin again with the larger budget and another --out"
    for step in range(1, steps + 1):
        if was(step) != would_be(step):
            raise ValueError(
                f"lr_schedule.name = {stored.lr_schedule.name!r} depends on the budget: with the "
                f"larger one step {step} would have had the learning rate {would_be(step):.4g}, "
                f"and not {was(step):.4g}; {remedy}"
            )
    if getattr(was, "at", ()) != getattr(would_be, "at", ()) and stored.adapt.name != "fixed":
        raise ValueError(
            f"adapt.name = {stored.adapt.name!r} looks at the decays of the learning rate, which "
            f"with lr_schedule.name = {stored.lr_schedule.name!r} depend on the budget: {remedy}"
        )
