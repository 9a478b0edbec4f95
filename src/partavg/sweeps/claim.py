"""One process at a time works on a run; a process that is killed lets go of it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def claim(folder: Path, locks: Path) -> Iterator[bool]:
    """Whether a folder is ours for as long as the context lasts."""
    locks.mkdir(parents=True, exist_ok=True)
    name = "+".join(folder.parts[-2:])
    with _locked(locks / f"{name}.lock") as ours:
        yield ours


def claimed(locks: Path) -> bool:
    """Whether any process is at work on what these locks are for."""
    for lock in locks.glob("*.lock"):
        with _locked(lock) as ours:
            if not ours:
                return True
    return False


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
