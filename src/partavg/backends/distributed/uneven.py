"""Ranks that do not all take the same steps: slower ones, and such that end before the others."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.hooks import RemovableHandle

from partavg.backends.distributed.agree import told_by_all
from partavg.backends.distributed.trailer import AVERAGES, LEAVES, RankReport, Trailer
from partavg.core.adapt import Adapt
from partavg.core.arguments import check_flag, check_whole
from partavg.core.pace import Fixed, Pace
from partavg.core.workers import Workers
from partavg.registry import mismatch
from partavg.sentences import shown

_SECONDS = RankReport._fields.index("seconds")


class AllEnded(Exception):
    """All ranks ask for the consensus: the message that said so has no effect."""

    def __init__(self, step: int) -> None:
        super().__init__(f"all ranks have ended after step {step}")
        self.step = step
        """The last that any of them took."""


class UnevenTrailer(Trailer):
    """Lets ranks ask for the consensus one by one.

    Those who did have no seconds to report: they say instead how many steps ago it was.
    """

    ended = 0
    """How many steps ago this rank asked for the consensus, while it waits for the others."""
    _all_at_work = True

    def sign_(self, message: Float[Tensor, "_"]) -> Float[Tensor, "4"]:
        """Write one's own entry, and since when one waits."""
        own = super().sign_(message)
        if self.ended:
            own[_SECONDS] = self.ended
        return own

    def read(self, entries: Float[Tensor, "_"]) -> None:
        """Read at once, also on a GPU: who has ended must know whether others train on."""
        self._waiting = entries
        self.catch_up()

    def check(self, entries: Sequence[RankReport]) -> None:
        """Raise an error as for others, or AllEnded."""
        ended = [entry for entry in entries if entry.deed == LEAVES]
        self._all_at_work = not ended
        resting = {"deed": AVERAGES, "seconds": 0.0}
        super().check([e._replace(**resting) if e.deed == LEAVES else e for e in entries])
        if self.ended and len(ended) == len(entries):
            raise AllEnded(self.step - int(min(entry.seconds for entry in ended)))

    def _watch(self, seconds: Sequence[float]) -> None:
        """Those who still train are not slow because others have ended."""
        if self._all_at_work:
            super()._watch(seconds)


class Uneven:
    """When this rank takes a step, and how it waits for others where it takes none."""

    def __init__(self, trailers: Sequence[Trailer], pace: Pace | None, place: int) -> None:
        self._trailers = [trailer for trailer in trailers if isinstance(trailer, UnevenTrailer)]
        self._pace, self._place = pace, place
        self._hooks: list[RemovableHandle] = []

    def catch_up_before(self, model: nn.Module, catch_up: Callable[[], None]) -> None:
        """Let a model that is called to be trained catch up with the others first."""

        def hook(*_: object) -> None:
            if torch.is_grad_enabled():
                catch_up()

        if self._pace is not None:
            self._hooks.append(model.register_forward_pre_hook(hook))

    def close(self) -> None:
        """Let the model be as it was."""
        while self._hooks:
            self._hooks.pop().remove()

    def steps_at(self, step: int) -> bool:
        """Whether this rank takes that step."""
        return self._pace is None or bool(self._pace(step)[self._place])

    def check_turn(self, step: int) -> None:
        """Raise a ValueError if this rank has taken a step that is not its own."""
        if not self.steps_at(step):
            raise ValueError(
                f"the pace lets this rank rest at step {step}, and its optimizer took one from a "
                f"model that did not hear of it: call model(…) in every step, or "
                f"averager.catch_up() before it"
            )

    def join(self, workers: Workers, rest: Callable[[], None]) -> None:
        """Take no more steps, but rest with the others until all ask for the consensus.

        All are then where the last step was taken, and what they sent since has no effect.
        """
        began = workers.step
        try:
            while self._trailers:
                steps, lr_sum = workers.steps.clone(), workers.lr_sum.clone()
                pending = dict(workers.pending)
                for trailer in self._trailers:
                    trailer.ended = workers.step + 1 - began
                rest()
        except AllEnded as end:
            workers.step, workers.pending = end.step, pending
            workers.steps, workers.lr_sum = steps, lr_sum
        finally:
            for trailer in self._trailers:
                trailer.ended = 0


def check_uneven(
    pace: object, uneven: bool, interval: int, groups: Sequence[dist.ProcessGroup], group: object,
    *, manager: object, adapt: Adapt | None,
) -> None:  # fmt: skip
    """Raise a ValueError for a pace that is none, or for what cannot be uneven."""
    check_flag("uneven", uneven)
    said = f"pace {shown(pace)}" if pace is not None else "uneven=True"
    refused = {
        "a mesh": isinstance(group, DeviceMesh),
        "a manager": manager is not None,
        f"adapt {type(adapt).__name__}": adapt is not None and adapt.heeds_loss,
    }
    for what, given in refused.items():
        if given and (uneven or pace is not None):
            raise ValueError(f"{said} does not go with {what}: leave one of them out")
    ranks = groups[0].size() if groups else 1
    if isinstance(pace, int):
        check_whole("pace", pace)
        Fixed(interval, (pace,), 1)  # which checks it
    elif pace is not None:
        _check_function(pace, ranks)


def _check_function(pace: Any, ranks: int) -> None:
    problem = "a class, call it" if isinstance(pace, type) else mismatch(pace, 1)
    if problem:
        raise ValueError(
            f"pace {shown(pace)} is no function of the step: {problem}; give this rank's number of "
            f"steps in an interval, or partavg.core.pace.Fixed(…)"
        )
    try:
        found = np.shape(pace(1))
    except Exception as error:
        raise ValueError(
            f"pace {shown(pace)} fails at step 1: {type(error).__name__}: {error}"
        ) from error
    if found != (ranks,):
        raise ValueError(
            f"pace {shown(pace)} gives an array of shape {list(found)} at step 1, and there are "
            f"{ranks} ranks: give a truth value for each"
        )


def pace_of(
    given: Pace | int | None, interval: int, groups: Sequence[dist.ProcessGroup]
) -> Pace | None:
    """Which ranks take which step; ranks that give a number of their own tell it to all."""
    if not isinstance(given, int):
        return given
    counts = told_by_all(given, next(iter(groups), None))
    return Fixed(interval, tuple(counts), len(counts))
