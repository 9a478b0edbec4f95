"""Many workers in one pass: torch.func.vmap over rows."""

from torch.func import vmap

from partavg.engines.chunked import Chunked
from partavg.engines.model import RowModel


def vmapped(model: RowModel, chunk: int) -> Chunked:
    """An engine that computes `chunk` workers at once; smaller chunks need less memory."""
    return Chunked(model, vmap(model.loss, randomness="different"), chunk)
