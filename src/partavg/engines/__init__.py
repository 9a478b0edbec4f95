"""Engines: the losses and gradients of all workers from their rows."""

from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.engines.vmapped import Vmapped

__all__ = ["Looped", "RowModel", "Vmapped"]
