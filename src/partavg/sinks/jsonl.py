"""metrics.jsonl: a line per row."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from partavg.json_text import json_text
from partavg.metrics.metric import Row
from partavg.sinks.sink import RunInfo

FILE = "metrics.jsonl"
"""Where the rows are in a run folder."""


class JsonLines:
    """Writes rows as lines of JSON after the first `length` bytes of a file.

    `synced` says after which steps a row must be on disk, and not only on its way.
    """

    def __init__(self, path: Path, synced: Callable[[int], bool], length: int = 0) -> None:
        self._path, self._synced = path, synced
        self.length = length
        """Bytes written so far, those of before a checkpoint included."""
        self._file: TextIO | None = None

    def begin(self, about: RunInfo) -> None:
        """Cut the file back to the length it had at a checkpoint; what came later comes again."""
        with self._path.open("ab") as file:
            file.truncate(self.length)
        self._file = self._path.open("a", encoding="utf-8", newline="\n")

    def take(self, row: Row) -> None:
        """Write a line."""
        assert self._file
        line = json_text(row) + "\n"
        self._file.write(line)
        self._file.flush()
        self.length += len(line)  # ASCII: as many bytes
        if self._synced(row["step"]):
            os.fsync(self._file.fileno())

    def end(self, summary: Row | None) -> None:
        """Close the file."""
        assert self._file
        self._file.close()
