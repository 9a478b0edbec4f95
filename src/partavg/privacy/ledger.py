"""What was spent, written down before it is released."""

import errno
import hashlib
import json
import os
from collections import Counter
from math import isfinite
from pathlib import Path
from typing import Any

from partavg.privacy.accountant import Accountant

LEDGER = "privacy.jsonl"
"""In a run folder: what is promised, then a line for every sum before its noise is drawn."""


class Ledger:
    """Sums that were released, or might have been: what is on disk is spent.

    A run that was killed and makes a sum again draws other noise and writes another line: then its
    cycle was released more than once, and counts for as much more. Checkpoints keep `mark`, by
    which a ledger that is older than they are, or another's, is known.
    """

    def __init__(self, path: Path, accountant: Accountant, max_epsilon: float | None) -> None:
        self._path, self._accountant, self._most = path, accountant, max_epsilon
        self._cycles: dict[int, float] = {}
        self._lines, self._digest = 0, hashlib.sha256()

    def begin(self) -> None:
        """Write down what is promised, in a file for its owner only.

        That of a run which was killed before its first checkpoint, and spent nothing, is replaced.
        """
        if self._path.exists() and self._path.read_bytes().count(b"\n") > 1:
            raise ValueError(
                f"{self._path} says that something was spent, and the checkpoints of that run are "
                f"gone: put them back, or begin another run with another flower.folder"
            )
        self._path.unlink(missing_ok=True)
        self._append(self._promise())

    @property
    def mark(self) -> tuple[int, str]:
        """How many lines there are, and their checksum."""
        return self._lines, self._digest.hexdigest()

    def resume(self, mark: tuple[int, str] | None = None) -> None:
        """Read what was spent; a ValueError if that cannot be known, or counted another way.

        It must begin with all that was written when a checkpoint kept its `mark`.
        """
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"{self._path} cannot be read ({error.strerror}), and without it nobody knows what "
                f"was spent: put it back, or begin another run with another flower.folder"
            ) from None
        whole, _, torn = text.rpartition("\n")
        try:
            promise, *lines = [json.loads(line) for line in whole.splitlines()]
            spent = [(int(line["cycle"]), float(line["share"])) for line in lines]
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self._path} is damaged, and without it nobody knows what was spent: put back "
                f"what was there, or begin another run with another flower.folder"
            ) from None
        if promise != self._promise():
            raise ValueError(
                f"{self._path} counts releases with {promise}, and {self._promise()} is wanted "
                f"now: put the privacy settings back, or begin another run"
            )
        written = [f"{line}\n".encode() for line in whole.splitlines()]
        lines_then, digest = mark or (0, hashlib.sha256().hexdigest())
        if hashlib.sha256(b"".join(written[:lines_then])).hexdigest() != digest:
            raise ValueError(
                f"{self._path} is not what it was when the checkpoint was saved: an older one, or "
                f"that of another run, which does not say all that was spent; put the newest one "
                f"back, or begin another run with another flower.folder"
            )
        self._lines, self._digest = len(written), hashlib.sha256(b"".join(written))
        if torn:  # nothing is released before a line is whole
            os.truncate(self._path, len(f"{whole}\n".encode()))
        for cycle, share in spent:
            self._add(self._cycles, cycle, share)

    def charge(self, cycle: int, share: float) -> None:
        """A sum of a cycle is about to be made, with this share of the squared clip."""
        self._append({"cycle": cycle, "share": share})
        self._add(self._cycles, cycle, share)

    def allows(self, cycle: int, share: float) -> bool:
        """Whether another sum of a cycle costs no more than there is."""
        if self._most is None:
            return True
        after = dict(self._cycles)
        self._add(after, cycle, share)
        return self._accountant.epsilon_of(_sizes(after)) <= self._most

    def epsilon(self) -> float | None:
        """What was spent; None where nothing is promised."""
        found = self._accountant.epsilon_of(_sizes(self._cycles))
        return found if isfinite(found) else None

    @property
    def delta(self) -> float:
        """At which it was."""
        return self._accountant.delta

    @staticmethod
    def _add(cycles: dict[int, float], cycle: int, share: float) -> None:
        cycles[cycle] = cycles.get(cycle, 0.0) + share

    def _promise(self) -> dict[str, Any]:
        of = self._accountant
        return {"noise": of.noise, "fraction": of.fraction, "delta": of.delta}

    def _append(self, line: dict[str, Any]) -> None:
        """Add a line, which is on disk when this returns."""
        flags, text = os.O_WRONLY | os.O_APPEND | os.O_CREAT, f"{json.dumps(line)}\n".encode()
        file = os.open(self._path, flags, 0o600)
        try:
            if os.write(file, text) != len(text):
                raise OSError(errno.ENOSPC, f"{self._path} could not be written: make room")
            os.fsync(file)
        finally:
            os.close(file)
        self._lines += 1
        self._digest.update(text)
        if os.name == "posix":
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _sizes(cycles: dict[int, float]) -> dict[float, int]:
    """How many cycles there are of each size; one that has begun counts as a whole."""
    return dict(Counter(max(1.0, round(size, 9)) for size in cycles.values()))
