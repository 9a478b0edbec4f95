"""Partial averaging over torch.distributed, in a user's own loop."""

from partavg.backends.distributed.attach import attach
from partavg.backends.distributed.averager import Averager
from partavg.backends.distributed.torch_averager import TorchAverager

__all__ = ["Averager", "TorchAverager", "attach"]
