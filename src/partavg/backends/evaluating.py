"""Evaluations by several processes: a metric that fails in one of them fails in all."""

from collections.abc import Callable
from typing import Any, TypeVar

from partavg.backends.processes import Processes
from partavg.scores.score import MetricFailed, Unmeasurable

Made = TypeVar("Made")


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
