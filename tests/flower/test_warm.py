"""The warm process of a node: what it forks, and what happens without it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from tests.flower.faults import fault
from tests.limits import seconds
from tests.processes import context

from partavg.flower import node, warm
from partavg.flower.node import Node, _kept_running
from partavg.flower.warm import CLIENT_APP, Warm

FAKE = """
import os, sys
from pathlib import Path
from partavg.flower import warm

def app():
    print("forked", *sys.argv[1:], os.environ["MARK"], os.getcwd(), flush=True)
    raise SystemExit(3)

warm.serve(Path(sys.argv[1]), {warm.CLIENT_APP: app})
"""


def until(done: Callable[[], object]) -> None:
    ends = time.monotonic() + seconds(60)
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the programs that ask a warm process; its name is longer than a socket's may be."""
    place = tmp_path / ("x" * 120)
    place.mkdir()
    warm.install(place)
    return place


@contextmanager
def warmed(folder: Path) -> Iterator[Path]:
    """A warm process that forks a program of the test's; the file where that says something."""
    said = folder.parent / "said"
    with said.open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", FAKE, str(folder)], stdout=log)
    try:
        until((folder / "socket").exists)
        yield said
    finally:
        process.kill()
        process.wait()


def ask(folder: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """What a SuperNode does for a task."""
    environ = {**os.environ, "PATH": f"{folder}{os.pathsep}{path or os.environ['PATH']}"}
    return subprocess.run(
        [CLIENT_APP, *words], env={**environ, "MARK": "mine"}, cwd=folder.parent, check=False,
        capture_output=True, text=True, timeout=seconds(60),
    )  # fmt: skip


@fault("Programs", "Flower asks for a second process for the same task")
def test_a_task_is_begun_once(folder: Path) -> str:
    with warmed(folder) as said:
        for token in ("a", "a", "b"):
            assert ask(folder, "--token", token).returncode == 0
        until(lambda: "--token b" in said.read_text())
        here = folder.parent
        assert sorted(said.read_text().splitlines()) == [
            f"forked --token {token} mine {here}" for token in "ab"
        ]
    return "it is forked once"


def cold_program(folder: Path) -> str:
    """A program of Flower's name that takes its time; PATH of its folder."""
    place = folder.parent / "bin"
    place.mkdir()
    program = place / CLIENT_APP
    program.write_text('#!/bin/sh\necho "cold $*"\ntest "$2" = slow && sleep 600\nexit 0\n')
    program.chmod(0o755)
    return f"{place}{os.pathsep}{os.environ['PATH']}"


@fault("Programs", "a node's warm process is killed, and a message comes before it is back")
def test_without_a_warm_process(folder: Path) -> str:
    with warmed(folder):
        pass
    assert (folder / "socket").exists(), "it was killed"
    done = ask(folder, "--token", "a", path=cold_program(folder))
    assert (done.returncode, done.stdout) == (0, "cold --token a\n")
    return "Flower's own program is started for it"


@fault("Programs", "starting takes so long that Flower starts another process beside the first")
def test_one_cold_process_at_a_time(folder: Path) -> str:
    path = cold_program(folder)
    environ = {**os.environ, "PATH": f"{folder}{os.pathsep}{path}"}
    slow = subprocess.Popen(
        [CLIENT_APP, "--token", "slow"], env=environ, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert slow.stdout
        assert slow.stdout.readline() == b"cold --token slow\n"
        done = ask(folder, "--token", "again", path=path)
        assert done.returncode == 1
        assert "another one is still starting or at work" in done.stderr
    finally:
        os.killpg(slow.pid, 9)
        slow.communicate()
    assert ask(folder, "--token", "then", path=path).stdout == "cold --token then\n"
    return "a second one ends at once, as long as the first is there"


def test_it_ends_with_its_node(folder: Path) -> None:
    code = """
import os, subprocess, sys, time
fake, folder = sys.argv[1:]
print(subprocess.Popen([sys.executable, "-c", fake, folder]).pid)
while not os.path.exists(folder + "/socket"):
    time.sleep(0.05)
"""
    words = [sys.executable, "-c", code, FAKE, str(folder)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE)
    child = int(done.stdout)

    def gone() -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        return "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]

    until(gone)


def test_it_is_started_again_unless_it_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, started = [0.0], []

    def forked(folder: Path) -> BaseProcess:
        started.append(clock[-1])
        process = context.Process(target=int)
        process.start()
        return process

    monkeypatch.setattr(warm, "_forked", forked)
    monkeypatch.setattr(warm.time, "monotonic", lambda: clock[-1])
    made = Warm(tmp_path)
    made._start()
    for now in (31.0, 33.0, 100.0):
        clock.append(now)
        if made._process:
            made._process.join()
        made.look()
    assert started == [0.0, 31.0]
    assert "there is no warm process" in caplog.text


@pytest.mark.parametrize(("code", "patience", "starts"), [(0, 90.0, 1), (5, 0.0, 1), (5, 12.0, 4)])
def test_a_node_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, patience: float, starts: int
) -> None:
    """Every 5 s, until its patience is over."""
    now, count = 0.0, tmp_path / "count"

    def sleep(pause: float) -> None:
        nonlocal now
        now += pause if pause > 1 else 0

    monkeypatch.setattr(node.time, "sleep", sleep)
    monkeypatch.setattr(node.time, "monotonic", lambda: now)
    command = ["sh", "-c", f"echo >> {count}; exit {code}"]
    assert _kept_running(command, os.environ, Warm(tmp_path), patience) == code
    assert len(count.read_text().splitlines()) == starts


def test_what_a_supernode_is_told(tmp_path: Path) -> None:
    from tests.flower import keys

    keys.node_key(tmp_path / "node2")
    made = Node(
        "h:1", 2, tmp_path / "state", tmp_path / "node2", tmp_path / "ca.crt", "cuda", "x=1"
    )
    assert made.command(9) == [
        "flower-supernode", "--superlink", "h:1", "--host", "127.0.0.1", "--port", "9",
        "--root-certificates", str(tmp_path / "ca.crt"),
        "--auth-supernode-private-key", str(tmp_path / "node2"), "--node-config",
        f'partition-id=2 state-dir="{tmp_path}/state" device="cuda" key="{tmp_path}/node2" x=1',
    ]  # fmt: skip
    plain = Node("h:1", 0, Path("state")).command(9)
    assert plain[7] == "--insecure"
    assert plain[-1] == f'partition-id=0 state-dir="{Path.cwd()}/state" device="cpu"'
