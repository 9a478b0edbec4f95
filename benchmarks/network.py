"""Workers in network namespaces of their own, joined by links of a set speed.

Each worker sees one interface, `wan`. Without latency it is a veth pair to a bridge, shaped with
tc's tbf in both directions. With latency it is a tun device, shaped where it sends, and a relay in
this process holds every packet for the time it would travel. All of it is gone when the context
ends, also on Ctrl-C and SIGTERM. It needs Linux, root, ip and tc.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from relay import Relay

LINK = "wan"
"""The interface that a worker sees."""

_QUEUE = "50ms"  # what a link holds back before it drops; a TCP sender slows down long before
_BURST = "32kb"


@dataclass(frozen=True, slots=True)
class Site:
    """Where one worker runs."""

    namespace: str
    address: str

    def command(self, *program: str) -> list[str]:
        """The command line that runs a program there."""
        return ["ip", "netns", "exec", self.namespace, *program]


def require() -> None:
    """Leave with one sentence where namespaces cannot be made."""
    missing = [tool for tool in ("ip", "tc") if not shutil.which(tool)]
    if missing:
        sys.exit(f"{' and '.join(missing)} not found: install iproute2")
    if os.geteuid():
        sys.exit("network namespaces need root: run this with sudo")
    probe = f"partavg-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        sys.exit(f"cannot make a network namespace ({made.stderr.strip()}): run where root may")
    _run("ip", "netns", "delete", probe)


def sent_bytes() -> int:
    """What this worker's interface has sent so far, headers included."""
    return int(Path(f"/sys/class/net/{LINK}/statistics/tx_bytes").read_text())


@contextmanager
def sites(workers: int, megabits: float, latency: float = 0.0) -> Iterator[list[Site]]:
    """So many namespaces; links of `megabits` per second, `latency` seconds from one to another."""
    made = [Site(f"partavg-{os.getpid()}-{i}", f"10.77.0.{i + 1}") for i in range(workers)]
    shape = ("root", "tbf", "rate", f"{megabits}mbit", "burst", _BURST, "latency", _QUEUE)
    with _undone() as undo:
        for site in made:
            _run("ip", "netns", "add", site.namespace)
            undo.callback(_run, "ip", "netns", "delete", site.namespace)
        if latency:
            undo.enter_context(Relay([site.namespace for site in made], LINK, latency))
        else:
            _bridge(made, shape, undo)
        for site in made:
            inside = ("ip", "-netns", site.namespace)
            _run(*inside, "link", "set", LINK, "addrgenmode", "none")  # no IPv6 chatter
            _run(*inside, "address", "add", f"{site.address}/24", "dev", LINK)
            _run(*inside, "link", "set", LINK, "up")
            _run(*inside, "link", "set", "lo", "up")
            _run("tc", "-netns", site.namespace, "qdisc", "add", "dev", LINK, *shape)
        yield made


def _bridge(made: list[Site], shape: tuple[str, ...], undo: ExitStack) -> None:
    """A veth pair from every namespace to one bridge, shaped towards the worker here."""
    bridge = f"pa{os.getpid()}"
    _run("ip", "link", "add", bridge, "type", "bridge")
    undo.callback(_run, "ip", "link", "delete", bridge)
    _run("ip", "link", "set", bridge, "up")
    for number, site in enumerate(made):
        outside = f"{bridge}-{number}"
        peer = ("peer", "name", LINK, "netns", site.namespace)
        # One frame per packet, so that the counters see every header
        _run("ip", "link", "add", outside, "gso_max_segs", "1", "type", "veth", *peer)
        _run("ip", "-netns", site.namespace, "link", "set", LINK, "gso_max_segs", "1")
        _run("ip", "link", "set", outside, "master", bridge, "up")
        _run("tc", "qdisc", "add", "dev", outside, *shape)


@contextmanager
def _undone() -> Iterator[ExitStack]:
    """What is pushed is undone whatever comes: SIGTERM is Ctrl-C, and while undoing both wait."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    old = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        with ExitStack() as undo:
            try:
                yield undo
            finally:
                for number in numbers:
                    signal.signal(number, signal.SIG_IGN)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
