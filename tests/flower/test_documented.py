"""The deployments of docs/flower.md, run as the page prints them."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import pytest
from tests.flower import warm
from tests.flower.faults import fault
from tests.limits import seconds

from partavg.flower.programs import end_all, free_port, processes_in, surroundings
from partavg.folder import RunFolder

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
Shell = Callable[[str], list[int]]
"""Runs commands; the processes that they left."""


def blocks(section: str) -> str:
    """The shell blocks of a section of the page."""
    text = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
    found = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return "".join(re.findall(r"^```sh\n(.*?)^```$", found, re.DOTALL | re.MULTILINE))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """What programs take for /tmp: their sockets must have short names."""
    with TemporaryDirectory(prefix="p") as name:
        yield Path(name)


@pytest.fixture
def shell(tmp_path: Path, scratch: Path) -> Shell:
    """A shell in a folder that is also the home; what it leaves running is ended."""
    warm.quicken(tmp_path)
    environ = surroundings(
        HOME=str(tmp_path),
        FLWR_HOME=str(tmp_path / ".flwr"),
        PYTHONPATH=os.pathsep.join(map(str, (tmp_path, ROOT / "src", ROOT))),
        TMPDIR=str(scratch),
        OMP_NUM_THREADS="1",
    )

    def run(commands: str) -> list[int]:
        said = tmp_path / "said.log"
        with said.open("wb") as log:
            program = subprocess.Popen(
                ["bash", "-e", "-c", commands], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                code = program.wait(seconds(400))
                left = processes_in(f"TMPDIR={scratch}")
            finally:
                for process in processes_in(f"TMPDIR={scratch}"):
                    os.kill(process, signal.SIGTERM)
                end_all(f"TMPDIR={scratch}")
        text = said.read_text(errors="replace")
        assert code == 0, text[-5000:]
        return left

    return run


@pytest.mark.skipif(find_spec("dp_accounting") is None, reason="dp-accounting is not installed")
@fault("The page", "the commands of “From nothing to three clients”, as they stand there")
def test_from_nothing_to_three_clients(shell: Shell, tmp_path: Path) -> str:
    shell(blocks("From nothing to three clients").replace("9092", str(free_port())))
    folder = RunFolder(tmp_path / "runs" / "fashion")
    summary = folder.summary()
    rows = list(folder.rows())
    assert len([row for row in rows if row["stage"] == "exchange"]) == 12
    assert [row["step"] for row in rows if "clients_accuracy" in row] == [20, 40, 60]
    assert folder.settings()["flower.keys"] == str(tmp_path / "clients.keys")
    assert summary["epsilon"] == pytest.approx(73.62, abs=0.01), "as the page has it"
    assert summary["delta"] == 1e-5
    assert summary["clients_accuracy"] > 0.15, "the noise is another one every time"
    assert "clients" not in summary, "a private run does not tell"
    report = (folder.path / "report.html").read_text()
    assert "Clients of fashion" not in report
    assert "Accuracy of clients" in report
    assert "ε</th>" in report
    assert "<td>73.6</td><td>1.0e-05</td>" in report, "ε and its δ"
    assert "private, changes clipped at 1, noise of 0.2 clips, δ = 1e-05" in report
    return (
        "a finished run of three clients, over TLS, each known by its key and measuring the "
        "model on its own test samples, with that, ε and δ in the report"
    )


@fault("The page", "the commands of “On one machine, without a network”, as they stand there")
def test_on_one_machine_without_a_network(shell: Shell, tmp_path: Path, scratch: Path) -> str:
    """In a network namespace of its own, where the system lets us: then there is no network."""
    commands = blocks("On one machine, without a network")
    alone = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "ip link set lo up"]
    assert "'" not in commands
    if which("unshare") and subprocess.run(alone, check=False, capture_output=True).returncode == 0:
        commands = f"{' '.join(alone[:4])} bash -e -c 'ip link set lo up\n{commands}'"
    assert not shell(commands)
    folder = RunFolder(tmp_path / "runs" / "fashion")
    assert [row["clients"] for row in folder.rows()] == [[0, 1, 2]] * 16
    assert "Clients of fashion" in (folder.path / "report.html").read_text()
    assert not list(scratch.glob("partavg-*"))
    return "a finished run of three clients, and nothing left running"
