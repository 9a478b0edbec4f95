"""Work that nothing waits for until the end of a pass, on a stream beside the others."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

_busy: set[torch.device] = set()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def aside(*used: Tensor) -> Iterator[None]:
    """Run what is inside when the tensors it uses are there, while the caller goes on.

    A kernel ends on few processors and the next one begins on few: two at a time fill the gaps.
    """
    if not used[0].is_cuda:
        yield
        return
    side = _stream(used[0].device)
    _busy.add(used[0].device)
    side.wait_stream(torch.cuda.current_stream(used[0].device))
    for tensor in used:
        tensor.record_stream(side)
    with torch.cuda.stream(side):
        yield


def join(device: torch.device) -> None:
    """Wait for all that runs aside."""
    if device in _busy:
        _busy.remove(device)
        torch.cuda.current_stream(device).wait_stream(_stream(device))
