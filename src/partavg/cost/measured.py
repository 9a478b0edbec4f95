"""A network as all-reduces on it show it to be."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter

import torch
from torch import distributed

from partavg.cost.network import Network

SIZES = (4_000, 64_000, 1_000_000, 8_000_000)
"""Bytes of the all-reduces that are measured."""

_REPEATS = 5
_LONG = 2.0  # seconds after which no larger one is tried
_FASTEST = 1e13  # bytes per second


def measure(backend: str, device: torch.device, sizes: Sequence[int] = SIZES) -> dict[int, float]:
    """Seconds of all-reduces over all ranks, which must call this together: medians of a few."""
    group = distributed.new_group(backend=backend)
    found: dict[int, float] = {}
    for size in sizes:
        tensor = torch.zeros(size // 4, device=device)
        distributed.all_reduce(tensor, group=group)  # connections are made when they are needed
        times = [_seconds(tensor, group) for _ in range(_REPEATS)]
        slowest = torch.tensor(times, dtype=torch.float64, device=device)
        distributed.all_reduce(slowest, distributed.ReduceOp.MAX, group=group)
        found[size] = median(slowest.tolist())
        if found[size] > _LONG:
            break
    distributed.destroy_process_group(group)
    return found


def _seconds(tensor: torch.Tensor, group: distributed.ProcessGroup) -> float:
    distributed.barrier(group)
    began = perf_counter()
    distributed.all_reduce(tensor, group=group)
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return perf_counter() - began


def fitted(measured: Mapping[int, float], workers: int, backend: str) -> Network:
    """The network that takes as long for the smallest and the largest of some all-reduces.

    >>> known = Network(4, bandwidth=12.5e6, latency=0.02)
    >>> found = fitted({size: known.seconds(size) for size in SIZES}, 4, "gloo")
    >>> round(found.bandwidth / 1e6, 2), round(found.latency, 4)
    (12.5, 0.02)
    """
    (small, quick), (large, long) = min(measured.items()), max(measured.items())
    network = Network(workers, _FASTEST, 0.0, backend)
    for _ in range(50):
        network = _slower(_later(network, small, quick), large, long)
    return network


def _later(network: Network, size: int, seconds: float) -> Network:
    """With the latency that makes an all-reduce of some bytes take some time."""
    trip = _crossing(lambda trip: replace(network, latency=trip).seconds(size), seconds)
    return replace(network, latency=trip)


def _slower(network: Network, size: int, seconds: float) -> Network:
    """With the bandwidth that makes an all-reduce of some bytes take some time."""
    per_byte = _crossing(lambda each: replace(network, bandwidth=1 / each).seconds(size), seconds)
    return replace(network, bandwidth=min(_FASTEST, 1 / per_byte))


def _crossing(rising: Callable[[float], float], value: float) -> float:
    """Where a rising function of seconds, 0 to `value`, comes to that value; or its end."""
    low, high = 1e-15, value
    if rising(low) >= value:
        return low
    for _ in range(60):
        middle = (low * high) ** 0.5 if high > 4 * low else (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return (low + high) / 2
