"""The files of a run as a reader finds them: checked, for anything may have happened to them.

Nothing here looks a name up or imports what a run was made of.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from partavg.metrics.metric import Metric, Row
from partavg.metrics.table import METRICS
from partavg.recipes.files import read

_MOST = 1e100  # beyond it, means and squares are no numbers any more
_NUMBERS = ("training.workers", "training.steps", "training.epochs", "training.scale",
            "training.seed", "averaging.interval", "averaging.parts", "participation.fraction",
            "split.alpha")  # fmt: skip
"""Settings that are said in words, and so must be numbers."""


def read_json(path: Path) -> Row:
    """A JSON file of a run."""
    try:
        return _object(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise _damaged(path, "it is no JSON object") from None


def read_rows(path: Path, length: int | None = None) -> Iterator[Row]:
    """The rows of metrics in so many bytes, or all; a line that is being written is left out."""
    gone = 0
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for number, line in enumerate(file, 1):
            gone += len(line)  # ASCII: as many bytes
            if not line.endswith("\n") or (length is not None and gone > length):
                return
            try:
                row = _object(line)
            except (ValueError, RecursionError):
                row = {}
            if not _is_count(row.get("step")):
                raise _damaged(path, f"line {number} is no row of metrics")
            yield row


def read_summary(path: Path, asked: Sequence[Metric] = ()) -> Row:
    """How a run ended, with numbers wherever tables need some, of metrics asked for, too."""
    found = read_json(path)
    columns = {column.key for metric in (*METRICS.values(), *asked) for column in metric.columns}
    for key in ("steps", "scale", *columns):
        if found.get(key) is not None and not _is_number(found[key]):
            raise _damaged(path, f"{key} is no number")
    if found.get("judged_on", "test") not in ("test", "validation"):
        raise _damaged(path, "judged_on is neither test nor validation")
    timings = found.get("timings", {})
    if not isinstance(timings, dict) or not all(map(_is_number, timings.values())):
        raise _damaged(path, "timings are no numbers")
    clients = found.get("clients", {})
    if not isinstance(clients, dict) or not all(map(_is_client, clients.values())):
        raise _damaged(path, "clients are not told of as they should be")
    return found


def read_split(path: Path) -> list[list[int]] | None:
    """How many samples of each class each worker owns; None where there are no classes."""
    counts = read_json(path).get("counts")
    if not isinstance(counts, list) or not all(isinstance(row, list) for row in counts):
        raise _damaged(path, "counts are no table")
    if not counts:
        return None
    if len({len(row) for row in counts}) > 1 or not counts[0]:
        raise _damaged(path, "workers have different numbers of classes")
    if not all(_is_count(count) for row in counts for count in row):
        raise _damaged(path, "a count is no whole number of at least 0")
    return counts


def read_settings(path: Path) -> dict[str, Any]:
    """The keys of a config, `section.key`."""
    try:
        tables = read(path)
    except RecursionError:
        raise _damaged(path, "it is nested too deep") from None
    sections = {name: values for name, values in tables.items() if isinstance(values, dict)}
    found = {f"{name}.{key}": v for name, values in sections.items() for key, v in values.items()}
    for key in _NUMBERS:
        if key in found and not _is_number(found[key]):
            raise _damaged(path, f"{key} is no number")
    interval, parts = (found.get(f"averaging.{key}", 1) for key in ("interval", "parts"))
    if not (_is_count(interval) and _is_count(parts) and interval and parts):
        raise _damaged(path, "averaging.interval and averaging.parts are not 1 or more")
    return found


def _object(text: str) -> Row:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError
    return found


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is damaged: {why}; leave this run out, or run it again with --force")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_client(about: object) -> bool:
    if not isinstance(about, dict) or not isinstance(about.get("away"), list):
        return False
    scored = about.get("scored", {})
    if not isinstance(scored, dict):
        return False
    newer = {key: about.get(key, 0) for key in ("samples", "tests", "seen", "late", "absences")}
    needed = {key: about.get(key) for key in ("sent", "received")}
    numbers = all(map(_is_number, [*needed.values(), *newer.values(), *scored.values()]))
    return numbers and all(isinstance(one, dict) and "step" in one for one in about["away"])
