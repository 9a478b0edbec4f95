"""Streams beside each other: where a kernel ends and leaves processors idle, others use them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

_used: dict[torch.cuda.Stream, list[Tensor]] = {}
_off: list[None] = []


@cache
def _beside(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """The stream that takes what a stream's work does not wait for."""
    return torch.cuda.Stream(stream.device)  # type: ignore[no-untyped-call]


@cache
def _own(device: torch.device, number: int) -> torch.cuda.Stream:
    """The stream of one of several calls."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def aside(*used: Tensor) -> Iterator[None]:
    """Run what is inside when the tensors it uses are there, while the caller goes on.

    They are kept until `join`: nobody then takes them for free to write into.
    """
    if not used[0].is_cuda or _off:
        yield
        return
    own = torch.cuda.current_stream(used[0].device)
    side = _beside(own)
    _used.setdefault(side, []).extend(used)
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
    if _used.pop(side, None):
        own.wait_stream(side)


@contextmanager
def in_order(wanted: bool = True) -> Iterator[None]:
    """Run nothing aside, if wanted: where the caller uses at once what was computed aside."""
    if wanted:
        _off.append(None)
    try:
        yield
    finally:
        if wanted:
            _off.pop()


def side_by_side(calls: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Make each call on a stream of its own, and wait for all; one after another on a CPU."""
    if device.type != "cuda":
        for call in calls:
            call()
        return
    own = torch.cuda.current_stream(device)
    streams = [_own(device, number) for number in range(len(calls))]
    for stream, call in zip(streams, calls, strict=True):
        stream.wait_stream(own)
        with torch.cuda.stream(stream):
            call()
    for stream in streams:
        own.wait_stream(stream)
