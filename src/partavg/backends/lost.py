"""What it is that a rank is lost: an error, which other errors are one, and whether it lives."""

import os
import re
from pathlib import Path

from torch import distributed

from partavg.sentences import reason

_BROKEN = re.compile(r"gloo|connection|timed? ?out|socket|broken pipe|by peer", re.IGNORECASE)


class RankLost(RuntimeError):
    """A collective failed because ranks are gone, or did not come in time."""

    def __init__(self, sentence: str, ranks: tuple[int, ...], *, speaks: bool) -> None:
        super().__init__(sentence)
        self.ranks = ranks
        self.speaks = speaks
        """Whether this is the rank, among those left, that should tell the user."""


def broke_a_connection(error: RuntimeError) -> bool:
    """Whether torch says so; gloo has no kind of error for it.

    >>> broke_a_connection(RuntimeError("Connection closed by peer")), broke_a_connection(
    ...     RuntimeError("The size of tensor a (768) must match the size of tensor b (512)")
    ... )
    (True, False)
    """
    if isinstance(error, RankLost):
        return not error.ranks
    if isinstance(error, distributed.DistError):
        return True
    return type(error) is RuntimeError and bool(_BROKEN.search(reason(error)))


def lives(pid: int) -> bool:
    """Whether a process of this machine has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state not in ("Z", "X")  # ended, but not yet taken note of by its parent
