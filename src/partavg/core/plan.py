"""What is averaged, when, by whom."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.core.arguments import check_number
from partavg.core.fresh import Fresh
from partavg.core.inputs import sent
from partavg.core.local_columns import LocalColumns
from partavg.core.pace import Pace
from partavg.core.participation import Participation, Swap, swap_
from partavg.core.partition import Partition, Span
from partavg.core.private import PrivateMean
from partavg.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Plan:
    """What is averaged, when, and how the workers are weighted."""

    schedule: Schedule
    partition: Partition
    buffer_parts: tuple[tuple[Span, ...], ...]
    """The columns of the buffers that are averaged along with each part."""
    weights: Float[Tensor, "n"]
    """p_i of all clients; they sum to 1."""
    participation: Participation | None = None
    """Which clients are active, where not all are."""
    pace: Pace | None = None
    """Which clients take a step, where not all take every step."""
    delay: int = 0
    """Steps between sending a part and applying its average, while training goes on."""
    rows: slice = field(default_factory=lambda: slice(None))
    """Of the workers that train, those held here."""
    swap: Swap = swap_
    """How what clients keep for themselves gets to where it is kept, and back."""
    aggregate: Aggregate = weighted_sum
    """What becomes of the workers' messages."""
    seed: int = 0
    """From which an Aggregate draws."""
    counters: tuple[int, ...] = ()
    """Columns of the buffers that hold whole numbers, which count on while averages are late."""
    local_buffers: tuple[Span, ...] = ()
    """The columns of the buffers that belong to no part, see `Partition`."""
    mix: float | None = None
    """α of Streaming DiLoCo: a worker takes (1 − α) of what all have in common, and α of its own as
    it is when the average arrives. None keeps all that it did since the part was sent."""
    fresh: Fresh | None = None
    """Draws the columns of every averaging, in place of the part's; the consensus is by parts."""
    resting: bool = False
    """Whether averages are taken as they are, without the solver's outer step: a warm start."""
    wire: str = "full"
    """How messages that are simulated are rounded, see `WIRE_FORMATS`."""
    frozen: tuple[Span, ...] = ()
    """Columns of the buffers that stay as they are, the same for all workers."""
    shared: frozenset[str] = frozenset()
    """Entries of the solver's memory that all workers have in common."""
    private: PrivateMean | None = None
    """What becomes of the messages in a private run, whose `weights` are not made to sum to 1."""

    def weights_at(self, step: int) -> Float[Tensor, "m"]:
        """p_i of the workers that train here at a step."""
        return self.all_weights_at(step)[self.rows]

    def all_weights_at(self, step: int) -> Float[Tensor, "a"]:
        """p_i of the workers that train at a step, here or in other processes."""
        who = self.participation
        if who is None:
            return self.weights
        present = who.present(step)
        if present is None:
            return _drawn(self.weights, who, who.draw(step))
        return self.weights[: len(present)] * torch.from_numpy(present).to(self.weights)

    def stepping(self, step: int) -> Bool[Tensor, "m"] | None:
        """Which workers held here take a step; None if all do."""
        mask = self.moving(step)
        if mask is None or mask[self.rows].all():
            return None
        return torch.from_numpy(mask[self.rows])

    def moving(self, step: int) -> NDArray[np.bool_] | None:
        """Which workers take a step, here or in other processes; None if all do."""
        who = self.participation
        present = who.present(step) if who else None
        if self.pace is None:
            return present
        moves = self.pace(step)[who(step)] if who else self.pace(step)
        return moves if present is None else moves & present

    def leaving(self, step: int) -> slice | None:
        """Rows here whose averages go to those who come next; None if nobody is about to leave."""
        if self.participation is None:
            return None
        slots = self.participation.leaving(step)
        return self.held(slots) if slots.start < slots.stop else None

    def held(self, slots: slice) -> slice:
        """The rows held here of some slots; there may be none."""
        count = self.participation.active if self.participation else len(self.weights)
        first, end, _ = self.rows.indices(count)
        inside = (min(max(slot, first), end) - first for slot in (slots.start, slots.stop))
        return slice(*inside)

    @property
    def local(self) -> LocalColumns:
        """What is each worker's own, and never averaged."""
        return LocalColumns(self.partition.local, self.local_buffers)

    @property
    def active_fraction(self) -> float:
        """Of all clients, those that are active."""
        who = self.participation
        return who.active / who.clients if who else 1.0

    def __post_init__(self) -> None:
        counts = self.schedule.parts, len(self.partition.parts), len(self.buffer_parts)
        if len(set(counts)) > 1:
            raise ValueError(
                f"the schedule has {counts[0]} parts, the partition {counts[1]} and the buffers "
                f"{counts[2]}: they must be the same"
            )
        check_delay(self.delay, self.schedule)
        check_mix(self.mix)


@lru_cache(maxsize=8)
def _drawn(weights: Float[Tensor, "n"], who: Participation, number: int) -> Float[Tensor, "m"]:
    """p_i of the clients of a draw; to send them to a GPU at every step would take time."""
    active = weights[sent(torch.tensor(who.drawn(number)), weights.device)]
    return active / active.sum()


def check_delay(delay: int, schedule: Schedule, buffers: str = "part") -> None:
    """Raise a ValueError if something would be sent again before it arrives."""
    if not 0 <= delay < schedule.interval:
        raise ValueError(
            f"delay {delay} is not below the interval {schedule.interval}: a part must arrive "
            f"before it is sent again"
        )
    if delay and buffers == "frozen":
        raise ValueError(
            f"delay {delay} lets statistics arrive after they were frozen: use delay = 0, or "
            f"buffers = part"
        )
    if delay and buffers == "every" and schedule.parts > 1:
        raise ValueError(
            f"delay {delay} lets statistics that are averaged with every part overtake each other: "
            f"use buffers = part"
        )


def check_mix(mix: float | None) -> None:
    """Raise a ValueError for a share that is none."""
    if mix is None:
        return
    check_number("mix", mix)
    if not 0 <= mix < 1:
        raise ValueError(
            f"mix {mix} is outside [0, 1): 0 takes over what all have in common, larger numbers "
            f"keep more of each worker's own"
        )
