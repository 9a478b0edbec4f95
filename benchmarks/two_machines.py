"""docs/two-machines.md as it stands: its commands between two network namespaces.

    sudo python benchmarks/two_machines.py [--megabits 20] [--latency 20]

Each namespace is a machine with a folder of its own that has examples/own_loop.py in it. What the
commands print is printed with the machine's number; the program ends with 0 if all of them did what
the page says. Where the page says that a process is killed, it is the one of the second machine,
as soon as two checkpoints are there.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import NamedTuple

from network import Site, require, sites

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "two-machines.md"
PLACES = {
    "on both": (0, 1),
    "on both, and a process is killed": (0, 1),
    "on the first": (0,),
    "on the first, until stopped": (0,),
    "on the second": (1,),
}
"""Where a block of the page is run: machines 0 and 1."""
PATIENCE = 300.0


class Block(NamedTuple):
    """Commands of the page, and where they are run."""

    place: str
    commands: str


def blocks(page: str) -> list[Block]:
    """All commands of the page in order; a ValueError for one of which nobody knows where."""
    found = [
        Block(*match) for match in re.findall(r"(?:<!-- (.*?) -->\n)?```sh\n(.*?)```", page, re.S)
    ]
    for block in found:
        if block.place not in PLACES:
            raise ValueError(f"{block.place!r} is no place: use {', '.join(PLACES)}")
    return found


class Machine:
    """A namespace, a folder, and what was exported there."""

    def __init__(self, number: int, site: Site, folder: Path) -> None:
        self._number, self._site = number, site
        self.folder = folder / f"machine-{number}"
        (self.folder / "examples").mkdir(parents=True)
        shutil.copy(ROOT / "examples" / "own_loop.py", self.folder / "examples")
        self._exports = ""

    def start(self, commands: str) -> subprocess.Popen[str]:
        """Run commands in a shell, and print what they say; exports are for those to come, too."""
        exports = [line for line in commands.splitlines() if line.startswith("export ")]
        script = f"set -e\n{self._exports}{commands}"
        self._exports += "".join(f"{line}\n" for line in exports)
        tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = {"PATH": tools, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            self._site.command("bash", "-c", script),
            cwd=self.folder,
            env={**os.environ, **variables, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        Thread(target=self._say, args=(process,), daemon=True).start()
        return process

    def kill_worker(self) -> None:
        """Kill the process that trains here, once it has kept two checkpoints."""
        wait_for(lambda: (self.folder / "kept" / "0" / "2.pt").exists(), "a checkpoint")
        for process in Path("/proc").glob("[0-9]*"):
            if _trains(process) and _inside(process, self._site.namespace):
                print(f"machine {self._number}: process {process.name} is killed", flush=True)
                os.kill(int(process.name), signal.SIGKILL)

    def _say(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout
        for line in process.stdout:
            print(f"machine {self._number}: {line}", end="", flush=True)


def _trains(process: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"own_loop.py") for word in words) and b"--nnodes" not in words


def _inside(process: Path, namespace: str) -> bool:
    try:
        return (process / "ns" / "net").samefile(f"/run/netns/{namespace}")
    except OSError:
        return False


def wait_for(condition: "object", what: str) -> None:
    """Wait until something holds; leave if it does not come about."""
    assert callable(condition)
    began = monotonic()
    while not condition():
        if monotonic() - began > PATIENCE:
            raise TimeoutError(f"there was never {what}")
        sleep(0.1)


@contextmanager
def running(machines: list[Machine], block: Block) -> Iterator[list[subprocess.Popen[str]]]:
    """A block on its machines; whatever is left of it at the end is ended."""
    processes = [machines[number].start(block.commands) for number in PLACES[block.place]]
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(PATIENCE)


def run(machines: list[Machine], block: Block) -> None:
    """Run a block to its end."""
    for line in block.commands.splitlines():
        print(f"{block.place}: {line}", flush=True)
    with running(machines, block) as processes:
        if "killed" in block.place:
            machines[1].kill_worker()
        for process in processes:
            if process.wait(PATIENCE):
                sys.exit(f"the page's command ended with {process.returncode}: see above")


def main() -> None:
    """Make the machines, run the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabits", type=float, default=20.0, help="per second, of each link")
    parser.add_argument("--latency", type=float, default=20.0, help="milliseconds, by a relay")
    arguments = parser.parse_args()
    require()
    todo = blocks(PAGE.read_text())
    with (
        tempfile.TemporaryDirectory() as folder,
        sites(2, arguments.megabits, arguments.latency / 1e3) as places,
    ):
        machines = [Machine(number, site, Path(folder)) for number, site in enumerate(places)]
        while todo:
            block = todo.pop(0)
            if "until stopped" in block.place:
                with running(machines, block):
                    sleep(2)  # until it listens
                    run(machines, todo.pop(0))
            else:
                run(machines, block)
    print("all commands of the page did what it says")


if __name__ == "__main__":
    main()
