"""CUDA streams beside each other: where a kernel leaves processors idle, others use them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

_used: dict[torch.cuda.Stream, list[Tensor]] = {}
_off: list[None] = []


@cache
def _side_of(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """The stream that takes what a stream's work does not wait for."""
    return torch.cuda.Stream(stream.device)  # type: ignore[no-untyped-call]


@cache
def _numbered(device: torch.device, number: int) -> torch.cuda.Stream:
    """The stream of one of several calls."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def on_side_stream(*used: Tensor) -> Iterator[None]:
    """Run what is inside when the tensors it uses are there, while the caller goes on.

    They are kept until `wait_for_side_stream`: nobody then takes them for free to write into.
    """
    if not used[0].is_cuda or _off:
        yield
        return
    own = torch.cuda.current_stream(used[0].device)
    side = _side_of(own)
    _used.setdefault(side, []).extend(used)
    side.wait_stream(own)
    for tensor in used:
        tensor.record_stream(side)
    with torch.cuda.stream(side):
        yield


def wait_for_side_stream(device: torch.device) -> None:
    """Wait for all that runs on the side stream of the current one."""
    if device.type != "cuda":
        return
    own = torch.cuda.current_stream(device)
    side = _side_of(own)
    if _used.pop(side, None):
        own.wait_stream(side)


@contextmanager
def without_side_stream(wanted: bool = True) -> Iterator[None]:
    """Run all in one stream, if wanted: where what a side stream computes is used at once."""
    if wanted:
        _off.append(None)
    try:
        yield
    finally:
        if wanted:
            _off.pop()


def each_on_own_stream(calls: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Make each call on a stream of its own, and wait for all; one after another on a CPU."""
    if device.type != "cuda":
        for call in calls:
            call()
        return
    own = torch.cuda.current_stream(device)
    streams = [_numbered(device, number) for number in range(len(calls))]
    for stream, call in zip(streams, calls, strict=True):
        stream.wait_stream(own)
        with torch.cuda.stream(stream):
            call()
    for stream in streams:
        own.wait_stream(stream)
