"""All workers in one pass, layer by layer: the engine for GPUs."""

from partavg.engines.fused.engine import Fused
from partavg.engines.fused.program import Uncovered

__all__ = ["Fused", "Uncovered"]
