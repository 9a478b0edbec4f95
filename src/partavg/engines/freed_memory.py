"""Memory that is used again in every step stays with the process."""

from functools import cache

import torch

_LARGEST = 31 << 20  # bytes: beyond 32 MiB glibc no longer learns from what is freed


@cache
def keep_freed_memory() -> None:
    """Let malloc keep what is freed, up to 62 MiB, instead of giving it back to the system.

    A step frees its activations and asks for as many again. glibc gives back what is at the end of
    its heap, and the system then hands it out page by page: a third of the time of a small model.
    It keeps twice the largest piece that was ever freed, so one is, which nobody wrote to.
    """
    torch.empty(_LARGEST, dtype=torch.uint8)
