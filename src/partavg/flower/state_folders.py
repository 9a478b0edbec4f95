"""What clients keep in a node's state folder, and taking away what is no longer needed."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

FINISHED = "finished"
"""The file that says that a run is over for a client."""
LOCK = "lock"
_OURS = re.compile(rf"{FINISHED}|{LOCK}|draft\.tmp|step-\d{{9}}-[0-9a-f]{{64}}\.pt")
_FOLDER = re.compile(r"client-\d+/[0-9a-f]{16}")

State = Literal["finished", "unfinished", "of an earlier version"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What one client keeps of one start of a job."""

    folder: Path
    job: str
    client: str
    """Its number; empty in what an earlier version kept."""
    state: State
    bytes: int
    used: float
    """When it was last written, in seconds since 1970."""

    @property
    def called(self) -> str:
        """Which it is, in words."""
        return f"{self.job}, client {self.client}" if self.client else self.job


def kept_in(home: Path, job: str = "") -> list[Kept]:
    """All that clients keep in a state folder, of one job or of all; a ValueError if it is none."""
    if not home.is_dir():
        raise ValueError(f"{home} is no folder: name the state-dir of a node")
    found = [one for folder in sorted(home.iterdir()) for one in _of_job(folder)]
    if not found and any(home.iterdir()):
        raise ValueError(
            f"{home} holds nothing that a client keeps: name the state-dir of a node, in which "
            f"each job has a folder"
        )
    if job and all(one.job != job for one in found):
        known = ", ".join(dict.fromkeys(one.job for one in found)) or "none"
        raise ValueError(f"{home} holds nothing of job {job!r}: there are {known}")
    return [one for one in found if job in ("", one.job)]


def _of_job(folder: Path) -> Iterator[Kept]:
    if folder.is_symlink() or not folder.is_dir():
        return
    if any(folder.glob("step-*.pt")):
        yield _kept(folder, folder.name, "", "of an earlier version")
    for inner in sorted(folder.glob("client-*/*")):
        place = inner.relative_to(folder).as_posix()
        links = inner.is_symlink() or inner.parent.is_symlink()
        if _FOLDER.fullmatch(place) and inner.is_dir() and not links:
            client = inner.parent.name.removeprefix("client-")
            over = (inner / FINISHED).exists()
            yield _kept(inner, folder.name, client, "finished" if over else "unfinished")


def _kept(folder: Path, job: str, client: str, state: State) -> Kept:
    files = [path.stat() for path in _files(folder)]
    used = max((file.st_mtime for file in files), default=folder.stat().st_mtime)
    return Kept(folder, job, client, state, sum(file.st_size for file in files), used)


def _files(folder: Path) -> list[Path]:
    """The files that are ours; others are never touched."""
    return [path for path in folder.iterdir() if path.is_file() and _OURS.fullmatch(path.name)]


def may_go(kept: Sequence[Kept], *, older_than: float = 0.0, force: bool = False) -> list[Kept]:
    """Those of runs that are over, or of all with `force`, not written for so many seconds."""
    before = time.time() - older_than
    return [one for one in kept if (force or one.state == "finished") and one.used <= before]


def remove(kept: Kept) -> bool:
    """Take away what a client keeps; False if a process is using it at this moment."""
    try:
        with FileLock(kept.folder / LOCK, timeout=0):
            for path in _files(kept.folder):
                if path.name != LOCK:
                    path.unlink()
            (kept.folder / LOCK).unlink(missing_ok=True)
    except Timeout:
        return False
    # The folder, and those of the client and the job, unless something else is there.
    for folder in [kept.folder, *kept.folder.parents][: 3 if kept.client else 1]:
        try:
            folder.rmdir()
        except OSError:
            break
    return True
