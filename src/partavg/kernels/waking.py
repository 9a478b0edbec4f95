"""What Triton does once in a process, in a thread, while others prepare models and data.

Before its first kernel it reads all of itself, hundreds of MiB, because names of the files that it
keeps depend on them, and asks for the versions of an assembler and a driver.
"""

from contextlib import suppress
from threading import Thread

import torch

from partavg.kernels.backend import lacks

_waking: list[Thread] = []


def begin(device: torch.device) -> None:
    """Wake Triton, once, if the device is a GPU that it can run on."""
    if device.type == "cuda" and not lacks(device) and not _waking:
        _waking.append(Thread(target=_wake, args=[device], name="partavg wakes Triton"))
        _waking[0].start()


def wait() -> None:
    """Until it is awake, if anybody woke it."""
    for thread in _waking:
        thread.join()


def _wake(device: torch.device) -> None:
    with suppress(Exception):  # the first kernel that is needed says it
        from partavg.kernels.nothing import prepare

        prepare(device)
