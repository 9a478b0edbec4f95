"""Flower's programs: their surroundings, and nothing of them left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_USUAL = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # it needs a network
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_END = 10.0  # seconds to end by itself


def surroundings(**more: str) -> dict[str, str]:
    """The environment of Flower's programs: they are found, and stay off the network."""
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join([beside, os.environ.get("PATH", os.defpath)])
    return {**_USUAL, **os.environ, "PATH": path, **more}


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end(program: "subprocess.Popen[bytes]") -> None:
    """Ask a program to end, then make it."""
    with suppress(ProcessLookupError):
        program.terminate()
    try:
        program.wait(_END)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def processes_in(place: str, *words: str) -> list[int]:
    """The processes with NAME=VALUE in their environment, and all words in names or commands.

    Flower's programs outlive their parents; their environment tells whose they are.
    """
    mark, found = place.encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            said = (entry / "comm").read_bytes() + (entry / "cmdline").read_bytes()
            ours = mark in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and int(entry.name) != os.getpid() and all(word.encode() in said for word in words):
            found.append(int(entry.name))
    return found


def end_all(place: str) -> None:
    """End what is left of the programs with NAME=VALUE in their environment."""
    ends = time.monotonic() + _END
    while time.monotonic() < ends and processes_in(place):
        time.sleep(0.1)  # most see that their parents are gone
    for process in processes_in(place):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
