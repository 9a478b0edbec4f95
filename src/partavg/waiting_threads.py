"""How torch's threads wait for each other on a CPU: awake on idle cores, asleep on shared ones.

GNU's OpenMP lets threads spin for milliseconds after every operation. On a machine that is busy
with other work this keeps others, and themselves, from working; but threads that sleep at once make
small operations slow. It reads how long to spin once, when torch loads it, so that is said when
partavg is imported. Later there is one way to let threads sleep: they do where there are more of
them than processors. So while training has to wait for processors, threads are added that do
nothing.
"""

import os
import sys
from pathlib import Path
from threading import Event, Lock, Thread, local
from time import monotonic
from typing import Any

SPINS = (
    "30001"  # a tenth of what GNU's OpenMP takes itself; odd, to be known in a process begun here
)
_BLIND = "1000"  # where nobody says how long a thread waited for a processor
_CHOSEN = "OMP_WAIT_POLICY" in os.environ or os.environ.get("GOMP_SPINCOUNT", SPINS) != SPINS
"""Whether the user has said how threads wait: then nothing here changes it."""

_EVERY, _QUIET = 0.1, 0.5  # seconds from one look to the next, and until threads may wake again
_SHARED = 0.05  # of the time that a thread waits for a processor where there is other work


def wait_briefly() -> None:
    """Say it to torch before it is imported; processes that this one starts hear it, too."""
    if not _CHOSEN:
        os.environ["GOMP_SPINCOUNT"] = _BLIND if _queued() is None else SPINS


def look() -> None:
    """Let threads sleep from now on if this one had to wait for a processor, else spin again.

    To be called often while something is computed; it looks every now and then. What was before
    counts for nothing: while engines are tried, threads of our own take processors from each other.
    """
    if _CHOSEN or (now := monotonic()) < _mine.again:
        return
    _mine.again = now + _EVERY
    queued = _queued()
    if queued is None or _threads() == 1:
        return
    before, _mine.seen = _mine.seen, (now, queued)
    if before is None or now - before[0] > 5 * _EVERY:  # something else was done since
        return
    share = (queued - before[1]) / (now - before[0])
    _sleepers.see(now, busy=share > _SHARED)


class _Mine(local):
    """What a thread saw of itself the last time that it looked, and when it is to look again."""

    again = 0.0
    seen: tuple[float, float] | None = None


class _Sleepers:
    """Threads that do nothing, while they are needed: all others sleep where they would spin."""

    def __init__(self) -> None:
        self._lock, self._end = Lock(), Event()
        self._thread: Thread | None = None
        self._busy_at = 0.0

    def see(self, now: float, *, busy: bool) -> None:
        """Begin or end as a thread finds its processor."""
        with self._lock:
            if busy:
                self._busy_at = now
                self._begin()
            elif self._thread and now - self._busy_at > _QUIET:
                self._end.set()
                self._thread.join()
                self._thread = None

    def _begin(self) -> None:
        if self._thread is None and (libraries := _openmps()):
            there, self._end = Event(), Event()
            wanted = libraries, _cores() - _threads() + 1, there, self._end
            self._thread = Thread(target=_keep, args=wanted, name=NAME, daemon=True)
            self._thread.start()
            there.wait(10)


NAME = "partavg lets threads sleep"
_mine, _sleepers = _Mine(), _Sleepers()


def _forget() -> None:
    """A forked process has none of the threads of the other."""
    global _mine, _sleepers
    _mine, _sleepers = _Mine(), _Sleepers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _keep(libraries: list[Any], count: int, there: Event, end: Event) -> None:
    """Have so many threads more until the end: they belong to the one that asked for them."""
    for library in libraries:
        library.GOMP_parallel(library.omp_get_level, None, max(1, count) + 1, 0)
    there.set()
    end.wait()


def _openmps() -> list[Any]:
    """GNU's OpenMPs, as this process has loaded them; none is seen but on Linux."""
    import ctypes

    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found = []
    for path in {line.split(maxsplit=5)[-1] for line in lines}:
        if Path(path).name.startswith("libgomp"):
            library = ctypes.CDLL(path)
            if hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_level"):
                given = [ctypes.c_void_p] * 2 + [ctypes.c_uint] * 2
                library.GOMP_parallel.argtypes, library.GOMP_parallel.restype = given, None
                found.append(library)
    return found


def _queued() -> float | None:
    """Seconds that this thread was ready and had no processor; None where nobody counts them."""
    try:
        ran, queued, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    except (OSError, ValueError):
        return None
    return queued / 1e9 if ran else None


def _threads() -> int:
    """How many threads torch uses here: one as long as it is not imported."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else 1


def _cores() -> int:
    return len(os.sched_getaffinity(0))
