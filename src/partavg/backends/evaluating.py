"""Evaluations of several processes: samples near at hand, and metrics that fail in one of them."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from partavg.backends.processes import Processes
from partavg.core import inputs as trees
from partavg.core.inputs import Inputs
from partavg.scores.score import MetricFailed, Unmeasurable

Made = TypeVar("Made")

_AT_ONCE = 1 << 28  # bytes of samples that a device has room for beside all else


def near(samples: tuple[Inputs, Tensor], device: torch.device) -> tuple[Inputs, Tensor]:
    """Samples that are needed more than once, on the device unless they are many."""
    every = (*trees.tensors(samples[0]), samples[1])
    if sum(tensor.nbytes for tensor in every) > _AT_ONCE:
        return samples
    return trees.each(lambda tensor: tensor.to(device), samples[0]), samples[1].to(device)


def made_by_all(processes: Processes, make: Callable[[], Made]) -> list[Made]:
    """What each process makes; a metric that fails in one of them fails in all."""
    made: Made | None = None
    failure: MetricFailed | Unmeasurable | None = None
    try:
        made = make()
    except (MetricFailed, Unmeasurable) as error:
        failure = error
    told: list[Any] = processes.each((made, failure))
    for rank, (_, problem) in enumerate(told):
        if problem is not None:
            raise type(problem)(f"rank {rank}: {problem}" if rank else str(problem)) from failure
    return [value for value, _ in told]
