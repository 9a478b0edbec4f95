"""Seconds, bytes and memory of exchanges over Flower, against Flower's own FedAvg.

    python benchmarks/flower.py simulation deployment large

Both apps train the same network on the same samples with the same number of steps between two
exchanges, and the same number of exchanges; ours in 4 parts. Flower's programs run as they come.
`large` sends 25 million parameters in 8 parts to three nodes and says how much memory that takes.
"""

import argparse
import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from threading import Event, Thread
from typing import Any

import flwr
import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from tests.flower.programs import Programs  # noqa: E402

LOCAL_STEPS, PARTS = 5, 4
APP = """
import sys
sys.path.insert(0, {path!r})
import flower_apps as apps
client = apps.{client}
server = apps.{server}
"""


def app(programs: Programs, name: str, settings: dict[str, object], **halves: str) -> Path:
    """Write one of the two apps."""
    text = APP.format(path=str(ROOT / "benchmarks"), **halves)
    return programs.app({**settings, "flower.job": name, "app.width": 64}, text)


def ours(programs: Programs, width: int, parts: int, exchanges: int, name: str) -> Path:
    """Start our app; its run folder."""
    folder = programs.folder / name
    settings = {
        "training.workers": 3, "training.batch": 16, "training.lr": 0.05,
        "training.steps": LOCAL_STEPS * exchanges, "averaging.interval": LOCAL_STEPS * parts,
        "averaging.parts": parts, "solver.name": "sgd", "solver.momentum": 0.9,
        "flower.folder": str(folder), "flower.wait": 300.0,
    }  # fmt: skip
    halves = {"client": f"partavg_client({width})", "server": f"partavg_server({width})"}
    programs.run(app(programs, name, settings, **halves))
    programs.wait((folder / "summary.json").exists, "our run", 1500)
    return folder


def theirs(programs: Programs, width: int, exchanges: int, name: str) -> list[float]:
    """Start Flower's FedAvg; seconds per round."""
    times = programs.folder / f"{name}.txt"
    settings = {
        "app.times": str(times), "app.rounds": exchanges, "app.local-steps": LOCAL_STEPS,
    }  # fmt: skip
    halves = {"client": "fedavg_client", "server": "fedavg_server"}
    programs.run(app(programs, name, settings, **halves))

    def done() -> bool:
        return times.exists() and times.read_text().count("\n") > exchanges

    programs.wait(done, "Flower's run", 1500)
    stamps = [float(line) for line in times.read_text().split()]
    return [after - before for before, after in pairwise(stamps)]


def started(kind: str, folder: Path, *, quick: bool = False) -> Programs:
    """A SuperLink with three nodes."""
    programs = Programs(folder, quick=quick)
    if kind == "simulation":
        programs.simulation(3, processes=3)
        return programs
    programs.superlink()
    for client in range(3):
        programs.register(f"node{client}")
        config = f'partition-id={client} state-dir="{folder / f"state{client}"}"'
        programs.supernode(f"node{client}", config)
    return programs


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The exchanges of a run."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["stage"] == "exchange"]


def compare(kind: str, rounds: int, exchanges: int) -> None:
    """Both apps in turn, so that a noisy machine is noisy for both."""
    with tempfile.TemporaryDirectory() as folder:
        programs = started(kind, Path(folder) / "f")
        try:
            mine, flowers = [], []
            for number in range(rounds):
                run = ours(programs, 64, PARTS, exchanges, f"ours{number}")
                mine += [row["seconds"] for row in rows_of(run)][1:]  # the first sends all
                flowers += theirs(programs, 64, exchanges, f"theirs{number}")[1:]
            print(
                f"{kind}: ours {spread(mine)}, FedAvg {spread(flowers)}, n = {len(mine)}; ", end=""
            )
            print(f"ratio of medians {median(mine) / median(flowers):.2f}")
            bytes_of(run, 4 * 55_050 / PARTS)
        finally:
            programs.close()


def bytes_of(run: Path, part: float) -> None:
    """What a client sends and receives per exchange."""
    rows = rows_of(run)
    for way in ("sent", "received"):
        each = [b[way]["0"] - a[way]["0"] for a, b in pairwise(rows)]
        print(f"  {way} per client and exchange: {min(each)} to {max(each)} bytes", end="; ")
        print(f"d/P is {part:.0f}")


def large() -> None:
    """25 M parameters in 8 parts; the largest memory of each program.

    Apps are forked from a warm process here, and the SuperNodes look for messages more often.
    """
    width, stop = 4616, Event()
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        programs = started("deployment", Path(folder) / "f", quick=True)

        def watch() -> None:
            while not stop.wait(0.2):
                for number in programs.processes():
                    note_peak(number, peaks)

        watcher = Thread(target=watch)
        watcher.start()
        try:
            run = ours(programs, width, 8, 9, "large")
            seconds = [row["seconds"] for row in rows_of(run)]
            size = width * (784 + 1) + width * (width + 1) + 10 * (width + 1)
            print(f"large: {size} parameters, 8 parts, exchanges {spread(seconds[1:])}, ", end="")
            print(f"the first, which sends all, {seconds[0]:.1f} s")
            bytes_of(run, 4 * size / 8)
            for name, peak in sorted(peaks.items()):
                print(f"  peak of {name}: {peak / 1e6:.2f} GB")
        finally:
            stop.set()
            watcher.join()
            programs.close()


def note_peak(number: int, peaks: dict[str, float]) -> None:
    """The largest memory that a program has had, in kB."""
    try:
        words = Path(f"/proc/{number}/comm").read_bytes().split()
        words += Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
        status = Path(f"/proc/{number}/status").read_text()
    except OSError:
        return
    names = [Path(word.decode()).name for word in words]
    name = next((n for n in names if n.startswith(("flwr-", "flower-", "tests.flower.warm"))), "")
    peak = next((int(li.split()[1]) for li in status.splitlines() if li.startswith("VmHWM")), 0)
    if name:
        peaks[name] = max(peaks.get(name, 0), peak)


def spread(seconds: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = quantiles(seconds, n=4)
    return f"{middle:.2f} s ({low:.2f} to {high:.2f})"


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="+", choices=("simulation", "deployment", "large"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--exchanges", type=int, default=12)
    arguments = parser.parse_args()
    print(f"flwr {flwr.__version__}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}")
    for what in arguments.what:
        large() if what == "large" else compare(what, arguments.rounds, arguments.exchanges)


if __name__ == "__main__":
    main()
