"""How many workers the fused engine can take in one pass: what they take of a GPU's memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from partavg.engines.choice import Choice

_KEPT = 4  # tensors of the parameters' size to leave room for: they, momentum, and two more
_SHARE = 0.85  # of the free memory that may be used


class Taken:
    """The largest number of bytes that was taken in a while, besides those before."""

    most = 0


@contextmanager
def watched(device: torch.device) -> Iterator[Taken]:
    """See what is taken of a GPU's memory inside."""
    taken = Taken()
    if device.type != "cuda":
        yield taken
        return
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield taken
    taken.most = torch.cuda.max_memory_allocated(device) - before


def in_passes(choice: Choice, workers: int, row: Tensor, each: float) -> Choice | None:
    """An engine in passes as large as the memory allows; None if no worker fits.

    Each takes so many bytes, and keeps a row of parameters.
    """
    free = _free(row.device)
    if choice.chunk or free is None:
        return choice._replace(chunk=min(choice.chunk or workers, workers))
    kept = _KEPT * workers * row.nbytes
    most = int((_SHARE * free - kept) / each)
    if most < 1:
        return None
    passes = -(-workers // most)
    size = -(-workers // passes)
    reason = f"{choice.reason}; {size} workers in a pass, {choice.precision}"
    reason += ", activations computed twice" if choice.recompute else ""
    return choice._replace(chunk=size, reason=reason)


def _free(device: torch.device) -> int | None:
    """Bytes of a GPU that nobody has; None on a CPU, where nobody counts them."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]
