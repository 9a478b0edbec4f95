"""How far another tool was told of a run: kept in the run folder, so that a resumed run goes on."""

import json
from collections.abc import Iterator

from partavg.metrics.metric import Row
from partavg.sinks.jsonl import FILE
from partavg.sinks.sink import RunInfo

FOLDER = "sinks"
"""Where bookmarks are in a run folder."""


class Bookmark:
    """The id that a tool gave to a run, and how many rows the tool has.

    A run that goes on from a checkpoint goes on after the last row of metrics.jsonl. Rows that the
    tool has beyond that come again and are skipped; rows that it lacks it gets from there.
    """

    def __init__(self, about: RunInfo, tool: str) -> None:
        self._path = about.folder / FOLDER / f"{tool}.json" if about.folder else None
        self._metrics = about.folder / FILE if about.folder else None
        self.run: str | None = None
        """The id of the run to go on with; None for a new one."""
        self._there = self._row = 0
        if self._path and self._path.exists():
            self._read(self._path.read_bytes(), f"{self._path} is damaged: delete it")
        self.resumed = self.run is not None

    def begin(self, run: str) -> Iterator[Row]:
        """Keep the id; yield the rows of before that the tool lacks."""
        self.run = run
        self._write()
        if self._metrics and self._metrics.exists():
            with self._metrics.open(encoding="utf-8") as lines:
                yield from (json.loads(line) for line in lines if self.is_new())

    def is_new(self) -> bool:
        """Turn to the next row; whether the tool lacks it."""
        self._row += 1
        return self._row > self._there

    def told(self) -> None:
        """The tool has all rows so far, whatever happens to this process."""
        self._there = max(self._there, self._row)
        self._write()

    def _read(self, text: bytes, complaint: str) -> None:
        try:
            found = json.loads(text)
            self.run, self._there = str(found["run"]), int(found["rows"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{complaint}, and the rows go to a new run of the tool") from None

    def _write(self) -> None:
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = self._path.with_suffix(".tmp")
            draft.write_text(json.dumps({"run": self.run, "rows": self._there}) + "\n")
            draft.replace(self._path)
