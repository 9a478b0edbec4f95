"""What Triton does once in a process, in a thread, while others prepare models and data.

Before its first kernel it reads all of itself, hundreds of MiB, because names of the files that it
keeps depend on them, and asks for the versions of an assembler and a driver.
"""

import os
from contextlib import suppress
from threading import Thread

import torch

from partavg.kernels.backend import lacks

_waking: list[Thread] = []


def begin(device: torch.device) -> None:
    """Wake Triton, once, if the device is a GPU that it can run on."""
    if device.type == "cuda" and not lacks(device) and not _waking:
        thread = Thread(target=_wake, args=[device], name="partavg wakes Triton")
        with suppress(RuntimeError):  # the system gives no more threads
            thread.start()
            _waking.append(thread)


def wait() -> None:
    """Until it is awake, if anybody woke it."""
    for thread in _waking:
        thread.join()


if hasattr(os, "register_at_fork"):  # a child would wait for ever for what a thread is reading
    os.register_at_fork(before=wait)


def _wake(device: torch.device) -> None:
    with suppress(Exception):  # the first kernel that is needed says it
        from partavg.kernels.nothing import prepare

        prepare(device)
