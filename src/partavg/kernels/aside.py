"""Streams beside each other: where a kernel ends and leaves processors idle, others use them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

_busy: set[torch.cuda.Stream] = set()


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _beside(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """The stream that takes what a stream's work does not wait for."""
    return _stream(stream.device, -stream.cuda_stream - 1)


@contextmanager
def aside(*used: Tensor) -> Iterator[None]:
    """Run what is inside when the tensors it uses are there, while the caller goes on."""
    if not used[0].is_cuda:
        yield
        return
    own = torch.cuda.current_stream(used[0].device)
    side = _beside(own)
    _busy.add(side)
    side.wait_stream(own)
    for tensor in used:
        tensor.record_stream(side)
    with torch.cuda.stream(side):
        yield


def join(device: torch.device) -> None:
    """Wait for all that runs aside."""
    if device.type != "cuda":
        return
    own = torch.cuda.current_stream(device)
    side = _beside(own)
    if side in _busy:
        _busy.remove(side)
        own.wait_stream(side)


def side_by_side(calls: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Make each call on a stream of its own, and wait for all; one after another on a CPU."""
    if device.type != "cuda":
        for call in calls:
            call()
        return
    own = torch.cuda.current_stream(device)
    for number, call in enumerate(calls):
        stream = _stream(device, number)
        stream.wait_stream(own)
        with torch.cuda.stream(stream):
            call()
    for number in range(len(calls)):
        own.wait_stream(_stream(device, number))
