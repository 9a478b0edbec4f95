"""Where clients keep their rows: private, bound to their owner, one process at a time."""

import re
import shutil
import stat
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from tests.flower import keys
from tests.flower.faults import fault
from tests.flower.federation import SOLVERS, assert_equal, federation, server
from tests.flower.grid import FakeGrid
from tests.flower.test_faults import QUICK
from tests.processes import context

from partavg import checkpoint
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


CHANGES = {**QUICK, **SOLVERS["sgd with momentum"], "training.steps": 6}


@fault("State", "clients share one state-dir")
def test_clients_that_share_a_folder(tmp_path: Path) -> str:
    apart, together = federation(tmp_path / "a", CHANGES), federation(tmp_path / "t", CHANGES)
    for node in together.contexts.values():
        node.node_config["state-dir"] = str(tmp_path / "t" / "shared")
    ends = []
    for grid in (apart, together):
        run = server(grid)
        assert not any(row["away"] for row in run)
        ends.append(run.model())
    assert_equal(*ends, tolerance=0)
    return "each keeps its own there; the model is the same to the bit"


def stopped(folder: Path) -> FakeGrid:
    """A federation after three exchanges."""
    grid = federation(folder, CHANGES)
    for _ in zip(range(3), server(grid), strict=False):
        pass
    return grid


def refused(grid: FakeGrid, folder: Path) -> str:
    """Why client 0 is left out now."""
    rows = list(server(grid, **{"flower.resume": True}))
    assert all(row["clients"] == [1, 2] for row in rows)
    why = rows[0]["away"]["0"].replace(str(folder), "…").partition("ValueError")
    return re.sub(r"folder \d+|[0-9a-f]{16}", "…", why[0] or why[2])


@fault("State", "a client gets the state folder of another client")
def test_a_folder_of_another_client(tmp_path: Path) -> str:
    grid = stopped(tmp_path)
    shutil.rmtree(tmp_path / "node0" / "test" / "client-0")
    theirs = tmp_path / "node1" / "test" / "client-1"
    shutil.copytree(theirs, tmp_path / "node0" / "test" / "client-0")
    why = refused(grid, tmp_path)
    assert "holds the state of client 1, and this is client 0" in why
    return f"left out, until somebody mends that: “{why}”"


@fault("State", "a node gets a copy of the state folder of another node (the same client)")
def test_a_copied_folder(tmp_path: Path) -> str:
    grid = stopped(tmp_path)
    (tmp_path / "node0").rename(tmp_path / "moved")
    grid.contexts[100].node_config["state-dir"] = str(tmp_path / "moved")
    run = server(grid, **{"flower.resume": True})
    going = iter(run)
    assert 0 in next(going)["clients"], "moved, not copied"
    going.close()
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    grid.contexts[100].node_config["state-dir"] = str(tmp_path / "copy")
    why = refused(grid, tmp_path)
    assert "holds the state of node" in why
    return f"left out, until somebody mends that: “{why}”"


def test_a_state_belongs_to_a_key(tmp_path: Path) -> None:
    """Where the node has one, a folder may be copied and belongs to it still; another key's not."""
    grid = federation(tmp_path, CHANGES)
    for name in ("one", "two"):
        keys.node_key(tmp_path / name)
    grid.contexts[100].node_config["key"] = str(tmp_path / "one")
    for _ in zip(range(3), server(grid), strict=False):
        pass
    shutil.copytree(tmp_path / "node0", tmp_path / "copy")
    grid.contexts[100].node_config["state-dir"] = str(tmp_path / "copy")
    going = iter(server(grid, **{"flower.resume": True}))
    assert 0 in next(going)["clients"]
    going.close()
    kept = memory_of(grid.contexts[100], "test", 0, "SHA256:other")
    (token,) = [path.name for path in (tmp_path / "copy" / "test" / "client-0").iterdir()]
    with pytest.raises(
        ValueError, match=r"holds the state of node 'SHA256:.*this is node 'SHA256:o"
    ):
        kept(token).load()


@fault("State", "a state folder holds what an earlier version of partavg kept")
def test_files_of_an_earlier_layout(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> str:
    grid = federation(tmp_path, CHANGES)
    old = tmp_path / "node0" / "test"
    checkpoint.save(old, 3, {"token": "0" * 16, "turn": 3, "loss": 0.0, "workers": {}})
    with caplog.at_level("WARNING", "flwr"):
        rows = list(server(grid))
    assert all(row["clients"] == [0, 1, 2] for row in rows)
    assert "an earlier version of partavg kept; it is not used, and can be removed" in caplog.text
    checkpoint.save(memory(tmp_path)._folder, 3, {"token": "0" * 16, "turn": 3, "workers": {}})
    with pytest.raises(ValueError, match="holds what another version of partavg kept: remove it"):
        memory(tmp_path).load()
    return "it is not read; a warning says that it can be removed"


@fault("State", "others on the machine look at a state folder")
def test_what_is_kept_is_private(tmp_path: Path) -> str:
    (tmp_path / "node0" / "test").mkdir(parents=True, mode=0o755)
    grid = stopped(tmp_path)
    assert grid.log
    seen = set()
    for path in (tmp_path / "node1", *(tmp_path / "node1").rglob("*")):
        seen.add((path.is_dir(), stat.S_IMODE(path.stat().st_mode)))
    assert seen == {(True, 0o700), (False, 0o600)}
    assert stat.S_IMODE((tmp_path / "node0" / "test").stat().st_mode) == 0o700, "an older one"
    return "folders are 0700 and files 0600"


@pytest.mark.parametrize("token", ["", "../../etc", "0" * 15, "A" * 16, "x" * 10_000])
def test_a_token_names_no_other_folder(tmp_path: Path, token: str) -> None:
    grid = federation(tmp_path, CHANGES)
    with pytest.raises(ValueError, match="names no start of a job"):
        memory_of(grid.contexts[100], "job", 0)(token)
