"""Federated averaging by ours, a plain loop, pfl-research, FedJAX and Flower: seconds a round.

    python benchmarks/peers.py [--work mlp] [--rounds 6] [--runs 5] [--device cpu]
        [--peers partavg,loop,pfl,fedjax,flower] [--pfl-python PYTHON] [--fedjax-python PYTHON]
        [--flower-python PYTHON] [--flower-rounds 3] [--threads 1,2] [--data ROOT]
        [--out results/benchmarks/peers.csv]

Each peer trains the same model on the same samples for the same users per round (peer_work.py), in
a process and a Python of its own; peers take turns, `--runs` times. Runs are added to those that
--out has. A run is the median of its rounds without the first. All let threads wait as partavg
does, which on a busy machine helps them. With `--data` the work cifar10 has CIFAR-10, else samples
are made up.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from peer_work import WORKS

import partavg
from partavg.waiting_threads import SPINS

HERE = Path(__file__).parent
COLUMNS = "work", "peer", "version", "device", "threads", "run", "rounds", "seconds", "accuracy"

OWN_THREADS = {"fedjax": str(os.cpu_count()), "flower": "1"}
"""JAX takes all cores whatever it is told; Flower has a process for each."""


class Peer(NamedTuple):
    """A program that does the work, and the Python that it needs."""

    name: str
    python: str
    rounds: int
    threads: int = 1


def samples(work: str, root: Path | None) -> dict[str, torch.Tensor]:
    """For all users, one after another, and 1,000 or more to test on."""
    users, each, shape = WORKS[work].users, WORKS[work].samples, WORKS[work].shape
    if root is None or work != "cifar10":
        torch.manual_seed(1)
        x = torch.randn(users * each + 1000, *shape)
        y = (x.flatten(1)[:, :64] @ torch.randn(64, 10)).argmax(1)
        return {"x": x[:-1000], "y": y[:-1000], "test_x": x[-1000:], "test_y": y[-1000:]}
    data = partavg.load_dataset("cifar10", root=root)
    (x, y), (test_x, test_y) = data.train, data.test
    x, test_x = (t.float().div_(255) for t in (x, test_x))
    mean, deviation = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    x, test_x = ((t - mean) / deviation for t in (x, test_x))
    return {"x": x[order], "y": y[order], "test_x": test_x, "test_y": test_y}


def run(peer: Peer, work: str, path: Path, device: str) -> dict[str, object] | str:
    """What one process of a peer says of itself, or why it cannot take part."""
    program = HERE / f"peer_{peer.name}.py"
    command = [peer.python, str(program), work, str(path), str(peer.rounds), device]
    paths = os.environ.get("PYTHONPATH", "")
    own = {"PYTHONPATH": paths} if peer.python == sys.executable else {"PYTHONPATH": ""}
    waiting = {"OMP_NUM_THREADS": str(peer.threads), "GOMP_SPINCOUNT": SPINS}
    environment = os.environ | own | waiting
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    except OSError as error:
        return f"{peer.python} cannot be run: {error.strerror}"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed"])[-1]
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"version"')]
    found: dict[str, object] = json.loads(lines[-1])
    return found


def measured(
    peers: Iterable[Peer], work: str, path: Path, device: str, numbers: range
) -> list[dict[str, object]]:
    """A row for each run; a peer that cannot take part is said once and left out."""
    rows: list[dict[str, object]] = []
    left = list(peers)
    for number in numbers:
        for peer in list(left):
            found = run(peer, work, path, device)
            if isinstance(found, str):
                print(f"{peer.name} does not take part: {found}", flush=True)
                left.remove(peer)
                continue
            seconds = found["seconds"]
            assert isinstance(seconds, list)
            values = (
                *(work, peer.name, found["version"], device, peer.threads, number),
                *(peer.rounds, f"{median(seconds[1:]):.6g}", f"{found['accuracy']:.4f}"),
            )
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def summary(rows: list[dict[str, object]]) -> Iterable[str]:
    """A line for each peer and number of threads, and times ours with its best in the same turn."""
    seconds: dict[tuple[object, object], dict[object, float]] = {}
    for row in rows:
        known = seconds.setdefault((row["peer"], row["threads"]), {})
        known[row["run"]] = float(str(row["seconds"]))
    ours = [own for (name, _), own in seconds.items() if name == "partavg"]
    best = min(ours, key=lambda own: median(own.values()), default={})
    for (peer, threads), own in seconds.items():
        ratios = [own[run] / best[run] for run in own if run in best]
        spread = f"{median(own.values()):.4g} s a round ({min(own.values()):.4g} to "
        spread += f"{max(own.values()):.4g}, n = {len(own)})"
        beside = f", {median(ratios):.3g} times ours" if ratios else ""
        beside += f" ({min(ratios):.3g} to {max(ratios):.3g})" if ratios else ""
        yield f"{peer}, {threads} threads: {spread}{beside}"


def main(words: Sequence[str] | None = None) -> None:
    """Let all peers do the work; print what they took, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", choices=WORKS, default="mlp")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--flower-rounds", type=int, default=3, help="it takes long for each")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pfl-python", default=sys.executable)
    parser.add_argument("--fedjax-python", default=sys.executable)
    parser.add_argument("--flower-python", default=sys.executable)
    parser.add_argument("--peers", default="partavg,loop,pfl,fedjax,flower", help="those wanted")
    parser.add_argument("--threads", default="1,2", help="of each process; the best counts")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    told = parser.parse_args(words)
    peers = [
        Peer("partavg", sys.executable, told.rounds),
        Peer("loop", sys.executable, told.rounds),
        Peer("pfl", told.pfl_python, told.rounds),
        Peer("fedjax", told.fedjax_python, told.rounds),
        Peer("flower", told.flower_python, told.flower_rounds),
    ]
    peers = [
        peer._replace(threads=int(threads))
        for peer in peers
        for threads in OWN_THREADS.get(peer.name, told.threads).split(",")
        if peer.name in told.peers.split(",")
    ]
    earlier = kept(told.out)
    first = 1 + max((int(row["run"]) for row in earlier if row["work"] == told.work), default=-1)
    numbers = range(first, first + told.runs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.pt"
        torch.save(samples(told.work, told.data), path)
        rows = measured(peers, told.work, path, told.device, numbers)
    print(*summary(rows), sep="\n")
    if told.out:
        told.out.parent.mkdir(parents=True, exist_ok=True)
        with told.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows([*earlier, *rows])


def kept(out: Path | None) -> list[dict[str, str]]:
    """Rows of runs before this one."""
    if out is None or not out.exists():
        return []
    with out.open() as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
