"""What W&B wrote offline, read back from its file."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BLOCK, _HEADER = 32768, 7
_WHOLE, _LAST = 1, 4


@dataclass
class Written:
    """A run as its file has it."""

    id: str = ""
    name: str = ""
    project: str = ""
    group: str = ""
    tags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


def written(folder: Path) -> list[Written]:
    """The runs that lie in a folder; a resumed one has a file for each time."""
    import wandb

    wandb.teardown()  # it goes on writing for a moment, and reads its variables once
    return [_read(path) for path in sorted(folder.rglob("run-*.wandb"))]


def _read(path: Path) -> Written:
    from wandb.proto.wandb_internal_pb2 import Record

    found = Written()
    for data in _records(path.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("run"):
            run = record.run
            found.id, found.name, found.project = run.run_id, run.display_name, run.project
            found.group, found.tags = run.run_group, tuple(run.tags)
            found.config |= _items(run.config.update)
        elif record.HasField("history"):
            found.rows.append(_items(record.history.item))
        elif record.HasField("summary"):
            found.summary |= _items(record.summary.update)
        elif record.HasField("exit"):
            found.exit_code = record.exit.exit_code
    return found


def _items(items: Any) -> dict[str, Any]:
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


def _records(content: bytes) -> Iterator[bytes]:
    """The records of a log in blocks; one that ends in a later block comes in pieces."""
    place, whole = _HEADER, b""  # the file has a header as long as that of a piece
    while place + _HEADER <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        whole += content[place + _HEADER : place + _HEADER + length]
        place += _HEADER + length
        if kind in (_WHOLE, _LAST):
            yield whole
            whole = b""
