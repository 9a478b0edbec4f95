"""Where clients keep their rows: one process at a time, and none that is dead stands in the way."""

import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from tests.flower.federation import federation
from tests.processes import context

from partavg.flower.memory import FolderMemory, Owner, memory_of


def test_a_node_must_say_where_it_keeps_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    grid = federation(tmp_path, {})
    grid.contexts[100].node_config = {"partition-id": 0}
    with pytest.raises(ValueError, match="does not say where to keep its model"):
        memory_of(grid.contexts[100], "job", 0)


def memory(folder: Path) -> FolderMemory:
    """A client's, in its own folder of a job."""
    return FolderMemory(folder / "job" / "client-0" / ("0" * 16), Owner("job", "0" * 16, 0, ""))


def hold(folder: Path, connection: Connection) -> None:
    """Say that the lock is held, and never let it go."""
    with memory(folder).lock():
        connection.send("held")
        connection.recv()


def test_the_lock_of_a_killed_process_is_free_again(tmp_path: Path) -> None:
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(tmp_path, there))
    process.start()
    assert here.recv() == "held"
    with pytest.raises(Timeout):
        FileLock(tmp_path / "job" / "client-0" / ("0" * 16) / "lock").acquire(timeout=0)
    process.kill()
    process.join()
    with memory(tmp_path).lock():
        pass
