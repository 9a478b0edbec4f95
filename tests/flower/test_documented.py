"""The deployments of docs/flower.md, run as the page prints them."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.flower import warm
from tests.flower.faults import fault
from tests.limits import seconds

from partavg.flower.programs import end_all, free_port, processes_of, surroundings
from partavg.folder import RunFolder

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
Shell = Callable[[str], str]


def blocks(section: str) -> str:
    """The shell blocks of a section of the page."""
    text = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
    found = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return "".join(re.findall(r"^```sh\n(.*?)^```$", found, re.DOTALL | re.MULTILINE))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell in a folder that is also the home; what it leaves running is ended."""
    warm.quicken(tmp_path)
    environ = surroundings(
        HOME=str(tmp_path),
        FLWR_HOME=str(tmp_path / ".flwr"),
        PYTHONPATH=os.pathsep.join(map(str, (tmp_path, ROOT / "src", ROOT))),
        OMP_NUM_THREADS="1",
    )

    def run(commands: str) -> str:
        said = tmp_path / "said.log"
        with said.open("wb") as log:
            program = subprocess.Popen(
                ["bash", "-e", "-c", commands], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                code = program.wait(seconds(400))
            finally:
                for process in processes_of(tmp_path / ".flwr"):
                    os.kill(process, signal.SIGTERM)
                end_all(tmp_path / ".flwr")
        text = said.read_text(errors="replace")
        assert code == 0, text[-5000:]
        return text

    return run


@fault("The page", "the commands of “From nothing to three clients”, as they stand there")
def test_from_nothing_to_three_clients(shell: Shell, tmp_path: Path) -> str:
    shell(blocks("From nothing to three clients").replace("9092", str(free_port())))
    folder = RunFolder(tmp_path / "runs" / "fashion")
    summary = folder.summary()
    assert [row["clients"] for row in folder.rows()] == [[0, 1, 2]] * 13
    assert summary["accuracy"] > 0.5
    assert folder.settings()["flower.keys"] == str(tmp_path / "clients.keys")
    kept = json.loads(json.dumps(summary["clients"]))
    assert sorted(kept) == ["0", "1", "2"]
    return "a finished run of three clients, over TLS, each known by its key"


@fault("The page", "the commands of “On one machine, without a network”, as they stand there")
def test_on_one_machine_without_a_network(shell: Shell, tmp_path: Path) -> str:
    """In a network namespace of its own where the system lets us: then there is no network."""
    alone = "unshare --user --map-root-user --net bash -e -c 'ip link set lo up 2>/dev/null || true"
    commands = blocks("On one machine, without a network").replace(
        "simulate fashion", "simulate fashion --set training.steps=10"
    )
    can = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "ip", "link", "set", "lo", "up"],
        capture_output=True,
    )
    assert "'" not in commands
    shell(f"{alone}\n{commands}'" if can.returncode == 0 else commands)
    folder = RunFolder(tmp_path / "runs" / "fashion")
    assert [row["clients"] for row in folder.rows()] == [[0, 1, 2]] * 3
    assert not list(Path("/tmp").glob("partavg-*/config.toml"))
    return "a finished run of three clients, and nothing left running"
