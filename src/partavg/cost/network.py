"""How long an all-reduce takes."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf

_OVERHEAD = 1.06
"""Bytes on the link per byte of a message over TCP: headers and acknowledgements, measured."""

_SEGMENT = 2**20
"""The most that gloo sends in one piece."""


def gloo(size: float, workers: int, bandwidth: float, latency: float) -> float:
    """The ring of gloo: two segments in flight, each sent when the receiver has asked for it.

    A worker passes on n = (m−1)s segments in each of two phases, s = max(2, ⌈L / m MiB⌉) to a
    worker. A segment needs g = L / msB on the link and 2a for question and answer, so a phase takes
    n(a + g/2) where latency decides and ng + 2a where bandwidth does, whichever is longer.
    """
    pieces = max(2, ceil(size / (workers * _SEGMENT)))
    segments = (workers - 1) * pieces
    busy = size / (workers * pieces * bandwidth)
    return 2 * max(segments * (latency + busy / 2), segments * busy + 2 * latency)


def ring(size: float, workers: int, bandwidth: float, latency: float) -> float:
    """The textbook's ring, as NCCL's: 2(m−1) hops of L/m bytes, each L/mB + a."""
    return 2 * (workers - 1) * (size / (workers * bandwidth) + latency)


BACKENDS: dict[str, Callable[[float, int, float, float], float]] = {"gloo": gloo, "nccl": ring}


@dataclass(frozen=True, slots=True)
class Network:
    """Equal links between the workers; one slow link sets the pace of all.

    >>> wan = Network(workers=4, bandwidth=12.5e6, latency=0.02)
    >>> wan.traffic(40e6)
    60000000.0
    >>> round(wan.seconds(40e6), 2)
    5.17
    """

    workers: int
    bandwidth: float
    """Bytes per second that a worker can send, and receive at the same time."""
    latency: float = 0.0
    """Seconds from one worker to another."""
    backend: str = "gloo"

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise ValueError(f"{self.workers} workers have nothing to exchange: use 2 or more")
        if not 0 < self.bandwidth < inf:
            raise ValueError(f"a bandwidth of {self.bandwidth} B/s sends nothing: use more than 0")
        if not 0 <= self.latency < inf:
            raise ValueError(f"a latency of {self.latency} s is no time: use 0 or more")
        if self.backend not in BACKENDS:
            raise ValueError(f"backend {self.backend!r} is not known: use {' or '.join(BACKENDS)}")

    def traffic(self, size: float) -> float:
        """Bytes that each worker sends, and receives, in an all-reduce of `size` bytes."""
        return 2 * (self.workers - 1) / self.workers * size

    def seconds(self, size: float) -> float:
        """Time of an all-reduce of `size` bytes."""
        net = self.bandwidth / _OVERHEAD
        return BACKENDS[self.backend](size, self.workers, net, self.latency)
