"""A relay that delivers packets late: latency without the kernel's netem."""

import os
import select
import struct
import subprocess
from collections import deque
from fcntl import ioctl
from threading import Event, Thread
from time import perf_counter
from typing import Self

_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000  # IFF_TUN | IFF_NO_PI
_LAST_OCTET = 19  # of the destination in an IPv4 header
_IDLE = 0.05


class Relay:
    """One tun device in each namespace; a packet to address x.x.x.n reaches the n-th, late."""

    def __init__(self, namespaces: list[str], device: str, latency: float) -> None:
        self._latency = latency
        self._ends = [_tun(namespace, device) for namespace in namespaces]
        self._stop = Event()
        self._thread = Thread(target=self._carry, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)

    def _carry(self) -> None:
        """Hold every packet for the latency; the same for all, so they leave as they came."""
        held: deque[tuple[float, int, bytes]] = deque()
        while not self._stop.is_set():
            pause = max(0.0, held[0][0] - perf_counter()) if held else _IDLE
            for end in select.select(self._ends, [], [], pause)[0]:
                packet = os.read(end, 65536)
                place = packet[_LAST_OCTET] - 1
                if packet[0] >> 4 == 4 and place < len(self._ends):
                    held.append((perf_counter() + self._latency, self._ends[place], packet))
            while held and held[0][0] <= perf_counter():
                _, end, packet = held.popleft()
                os.write(end, packet)


def _tun(namespace: str, device: str) -> int:
    """An open tun device; the interface that belongs to it is in the namespace."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"pa{os.getpid()}-{namespace.rpartition('-')[2]}"
    ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
    moved = ["ip", "link", "set", name, "netns", namespace, "name", device]
    subprocess.run(moved, check=True, capture_output=True)
    return end
