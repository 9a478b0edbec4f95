"""How torch's threads wait for each other on a CPU: a moment awake, then asleep.

GNU's OpenMP lets them spin for milliseconds after every operation. On a machine that is busy with
other work this keeps others, and themselves, from working. It reads its settings once, when torch
loads it, so they are set when partavg is imported. Where torch came first, another way is left:
threads spin briefly where there are more of them than processors.
"""

import os
import sys
from functools import cache
from pathlib import Path

SPINS = "1000"  # what GNU's OpenMP takes itself where threads outnumber processors
_CHOSEN = any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"))
"""Whether the user has said how threads wait: then nothing here changes it."""
_LATE = not _CHOSEN and "torch" in sys.modules


def wait_briefly() -> None:
    """Say it to torch before it is imported; processes that this one starts hear it, too."""
    if not _CHOSEN:
        os.environ["GOMP_SPINCOUNT"] = SPINS


@cache
def wait_briefly_after_all() -> bool:
    """Say it to a torch that came before partavg; whether there was need, and a way.

    Threads that sleep for good make them more than there are processors.
    """
    import torch

    if not _LATE or torch.get_num_threads() == 1 or not (paths := _openmp()):
        return False
    sleepers = max(1, len(os.sched_getaffinity(0)) - torch.get_num_threads() + 1)
    added = [_add_threads(path, sleepers) for path in paths]
    return any(added)


def _openmp() -> set[str]:
    """GNU's OpenMP, as this process has loaded it; none is seen but on Linux."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[-1] for line in lines}
    return {path for path in paths if Path(path).name.startswith("libgomp")}


def _add_threads(openmp: str, count: int) -> bool:
    """Add threads to those that an OpenMP knows, which do nothing."""
    import ctypes
    import threading

    try:
        library = ctypes.CDLL(openmp)
        run, nothing = library.GOMP_parallel, library.omp_get_level
    except (OSError, AttributeError):
        return False
    run.argtypes, run.restype = [ctypes.c_void_p] * 2 + [ctypes.c_uint] * 2, None
    there = threading.Event()

    def keep() -> None:
        run(nothing, None, count + 1, 0)  # threads belong to the one that asked for them
        there.set()
        threading.Event().wait()

    threading.Thread(target=keep, name="partavg keeps threads asleep", daemon=True).start()
    return there.wait(10)
