"""From policies, as a user names them, to what the training loop needs."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.pace import Pace
from partavg.core.participation import Participation, Swap
from partavg.core.partition import PARTITIONS, Partition, Span, follow
from partavg.core.plan import Plan
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver, per_client
from partavg.core.workers import Workers
from partavg.engines.model import RowModel

Buffers = Literal["part", "every", "local", "recompute"]
Weights = Literal["uniform", "samples"]
Bank = Literal["device", "cpu"]


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes the plan of a schedule, also of those that follow the first."""

    model: RowModel
    partition: str | Partition
    buffers: str
    shares: Float[Tensor, "n"]
    participation: Participation | None
    pace: Pace | None
    delay: int
    seed: int
    rows: slice
    swap: Swap

    def __call__(self, schedule: Schedule) -> Plan:
        """A plan; a delay that does not fit a shorter interval is shortened."""
        cut = self.partition
        if isinstance(cut, str):
            make = _maker(cut if schedule.parts > 1 else "whole")
            cut = make(self.model.params, schedule.parts, self.seed)
        return Plan(
            schedule,
            cut,
            _buffer_parts(self.buffers, cut, self.model),
            self.shares,
            self.participation,
            self.pace,
            min(self.delay, schedule.interval - 1),
            self.rows,
            self.swap,
        )


def shares_of(policy: str, split: Sequence[Tensor]) -> Float[Tensor, "m"]:
    """p_i of all clients."""
    if policy not in get_args(Weights):
        raise ValueError(f"weights {policy!r} is not known: use {' or '.join(get_args(Weights))}")
    counts = torch.tensor([len(samples) for samples in split], dtype=torch.float64)
    shares = counts if policy == "samples" else torch.ones_like(counts)
    return shares / shares.sum()


def kept(
    participation: Participation, solver: Solver, workers: Workers, shared: Collection[str]
) -> tuple[str, ...]:
    """What clients keep for themselves when they are not active, never what all workers share."""
    if participation.redistribution == "none":
        common = {f"memory.{name}" for name in shared}
        return tuple(name for name in workers.row_names if name not in common)
    return tuple(f"memory.{name}" for name in per_client(solver))


def bank_device(name: str, device: torch.device) -> torch.device:
    """Where the bank is."""
    if name not in get_args(Bank):
        raise ValueError(f"bank {name!r} is not known: use {' or '.join(get_args(Bank))}")
    return device if name == "device" else torch.device("cpu")


def _maker(name: str) -> Callable[..., Partition]:
    if name not in PARTITIONS:
        raise ValueError(f"partition {name!r} is not known: use {', '.join(PARTITIONS)}")
    return PARTITIONS[name]


def _buffer_parts(
    policy: str, partition: Partition, model: RowModel
) -> tuple[tuple[Span, ...], ...]:
    if policy not in get_args(Buffers):
        raise ValueError(f"buffers {policy!r} is not known: use {', '.join(get_args(Buffers))}")
    if policy == "part":
        return follow(partition, model.params, model.buffers).parts
    everything = (Span(0, model.buffers.size),) if policy == "every" and model.buffers.size else ()
    return (everything,) * len(partition.parts)
