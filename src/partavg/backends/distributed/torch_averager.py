"""An Averager in the shape of torch's own, for PostLocalSGDOptimizer and loops written for it."""

from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import ModelAverager

from partavg.backends.distributed.averager import Averager


class TorchAverager(ModelAverager):
    """Averages the part that is due whenever torch asks for the parameters to be averaged."""

    def __init__(self, averager: Averager, group: dist.ProcessGroup | None = None) -> None:
        self._averager = averager
        super().__init__(group)

    @property
    def step(self) -> int:
        """Steps so far; PostLocalSGDOptimizer saves and sets it."""
        return self._averager.steps

    @step.setter
    def step(self, step: int) -> None:
        self._averager.steps = step

    def average_parameters(self, params: Any) -> None:
        """Average what is due; it is the model given to `attach`, whatever is given here."""
        self._averager.step()
