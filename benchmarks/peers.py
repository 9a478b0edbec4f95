"""Federated averaging by ours, a plain loop, pfl-research, FedJAX and Flower: seconds a round.

    python benchmarks/peers.py [--work mlp] [--rounds 6] [--rounds-of flower=3] [--runs 5]
        [--peers partavg,loop,pfl,fedjax,flower] [--device cpu] [--threads 1,2] [--processes 1]
        [--pfl-python PYTHON] [--pfl-path FOLDER] [--fedjax-python PYTHON] [--fedjax-path FOLDER]
        [--flower-python PYTHON] [--data ROOT] [--limit SECONDS]
        [--out results/benchmarks/peers.csv]

Each peer trains the same model on the same samples for the same users per round (peer_work.py), in
a process and a Python of its own; peers take turns, `--runs` times, and the number of a run is its
seed. A run is added to those that --out has when it is done, and what is not done at the `--limit`
is left out. `seconds` is the median of a run's rounds without the first, `whole` what all rounds
of the work take, evaluations and the first round included: measured if all were run, else the
first and so many times the mean of the others; `wall` is that of the process, imports included.
All let threads spin as long as partavg does at most; ours sleep sooner where the machine is busy.
pfl is tried with each number of `--processes`. With `--data` the work cifar10 has CIFAR-10, else
samples are made up.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from socket import socket
from statistics import fmean, median
from time import perf_counter, sleep
from typing import Any, NamedTuple

import torch
from peer_work import WORKS

import partavg
from partavg.waiting_threads import SPINS

HERE = Path(__file__).parent
COLUMNS = (
    *("work", "peer", "version", "device", "threads", "run", "rounds", "seconds", "accuracy"),
    *("processes", "first", "whole", "wall"),
)

OWN_THREADS = {"fedjax": str(os.cpu_count()), "flower": "1"}
"""JAX takes all cores whatever it is told; Flower has a process for each."""


PEERS = "partavg", "loop", "pfl", "fedjax", "flower"


class Peer(NamedTuple):
    """A program that does the work, and the Python that it needs."""

    name: str
    python: str
    rounds: int
    threads: int = 1
    processes: int = 1
    path: str = ""
    """Where its packages are, beside those that its Python has."""


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


def run(
    peer: Peer, work: str, path: Path, device: str, seed: int, limit: float
) -> dict[str, Any] | str:
    """What the processes of a peer say, and the seconds they took; or why it cannot take part."""
    program = HERE / f"peer_{peer.name}.py"
    told = [work, str(path), str(peer.rounds), device, str(seed)]
    paths = os.environ.get("PYTHONPATH", "") if peer.python == sys.executable else ""
    waiting = {"OMP_NUM_THREADS": str(peer.threads), "GOMP_SPINCOUNT": SPINS}
    own = os.environ | waiting | {"PYTHONPATH": os.pathsep.join(filter(None, (peer.path, paths)))}
    began = perf_counter()
    with ExitStack() as files:
        started = []
        for environment in environments(peer.processes):
            out, errors = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
            try:
                process = subprocess.Popen(
                    [peer.python, str(program), *told],
                    env=own | environment,
                    stdout=out,
                    stderr=errors,
                    text=True,
                )
            except OSError as error:
                return f"{peer.python} cannot be run: {error.strerror}"
            started.append((process, out, errors))
        problem = waited([process for process, _, _ in started], limit)
        wall = perf_counter() - began
        if problem:
            return problem
        failed = sorted(started, key=lambda each: -each[0].returncode)  # others were ended
        if any(process.returncode for process, _, _ in started):
            errors = failed[0][2]
            errors.seek(0)
            return (errors.read().strip().splitlines() or ["it failed"])[-1]
        said = started[0][1]
        said.seek(0)
        lines = [line for line in said if line.startswith('{"version"')]
    return {**json.loads(lines[-1]), "wall": wall}


def environments(processes: int) -> list[dict[str, str]]:
    """What each of the processes of a peer is told of the others, as pfl wants it."""
    if processes == 1:
        return [{}]
    with ExitStack() as sockets:
        taken = [sockets.enter_context(socket()) for _ in range(processes)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        addresses = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in taken)
    common = {"PFL_WORKER_ADDRESSES": addresses, "GLOO_SOCKET_IFNAME": "lo"}
    return [{**common, "PFL_WORKER_RANK": str(rank)} for rank in range(processes)]


def waited(started: Sequence["subprocess.Popen[str]"], limit: float) -> str:
    """Wait until all are done, or one has failed; why that took too long, if it did."""
    end = perf_counter() + limit
    try:
        while None in (codes := {process.poll() for process in started}) and codes <= {None, 0}:
            if perf_counter() > end:
                return f"it was not done after {limit:.0f} s"
            sleep(0.02)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return ""


def measured(
    peers: Iterable[Peer], work: str, path: Path, device: str, numbers: range, limit: float
) -> Iterable[dict[str, object]]:
    """A row for each run; a peer that cannot take part is said once and left out."""
    end = perf_counter() + limit
    left = list(peers)
    for number in numbers:
        for peer in list(left):
            if perf_counter() > end:
                return
            found = run(peer, work, path, device, number, end - perf_counter())
            if isinstance(found, str):
                print(f"{peer.name} does not take part: {found}", flush=True)
                left.remove(peer)
                continue
            seconds = found["seconds"]
            whole = in_all(seconds, WORKS[work].whole)
            values = (
                *(work, peer.name, found["version"], device, peer.threads, number),
                *(peer.rounds, f"{median(seconds[1:]):.6g}", f"{found['accuracy']:.4f}"),
                *(peer.processes, f"{seconds[0]:.4g}", f"{whole:.5g}", f"{found['wall']:.4g}"),
            )
            yield dict(zip(COLUMNS, values, strict=True))


def in_all(seconds: Sequence[float], rounds: int) -> float:
    """Of so many rounds, 0 for those that were run; the mean of the later ones for the others."""
    more = max(0, rounds - len(seconds))
    return sum(seconds) + more * fmean(seconds[1:])


def summary(rows: list[dict[str, object]]) -> Iterable[str]:
    """A line for each peer at each size, and times ours with its best in the same turn."""
    found: dict[tuple[str, ...], dict[int, dict[str, object]]] = {}
    for row in rows:
        key = tuple(str(row[name]) for name in ("peer", "threads", "processes"))
        found.setdefault(key, {})[int(str(row["run"]))] = row
    wanted = max((WORKS[str(row["work"])].whole for row in rows), default=0)
    what = "whole" if wanted else "seconds"  # with few rounds the first would count too much
    ours = [_each(own, what) for (name, *_), own in found.items() if name == "partavg"]
    best = min(ours, key=lambda own: median(own.values()), default={})
    for (peer, threads, processes), own in found.items():
        first = next(iter(own.values()))
        whole, times = _each(own, "whole"), _each(own, what)
        ratios = [times[run] / best[run] for run in times if run in best]
        rounds = int(str(first["rounds"]))
        told = f"{peer}, {threads} threads, {processes} processes: "
        told += f"{_spread(_each(own, 'seconds').values())} s a round (n = {len(own)}), "
        told += f"{_spread(whole.values())} s for {max(rounds, wanted):,} rounds"
        told += f" as {rounds} of them tell" if rounds < wanted else ""
        told += f", {_spread(ratios)} times ours" if ratios and peer != "partavg" else ""
        yield f"{told}; accuracy {_spread(_each(own, 'accuracy').values())}"


def _each(own: dict[int, dict[str, object]], column: str) -> dict[int, float]:
    return {run: float(str(row[column])) for run, row in own.items()}


def _spread(values: Iterable[float]) -> str:
    """The median, and between what."""
    low, *_, high = [*(known := sorted(values)), known[-1]]
    return f"{median(known):.4g} ({low:.4g} to {high:.4g})"


def main(words: Sequence[str] | None = None) -> None:
    """Let all peers do the work; print what they took, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", choices=WORKS, default="mlp")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rounds-of", default="flower=3", help="of those that take long for each")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pfl-python", default=sys.executable)
    parser.add_argument("--pfl-path", default="", help="its packages, if its Python has them not")
    parser.add_argument("--fedjax-python", default=sys.executable)
    parser.add_argument("--fedjax-path", default="")
    parser.add_argument("--flower-python", default=sys.executable)
    parser.add_argument("--peers", default=",".join(PEERS), help="those wanted")
    parser.add_argument("--threads", default="1,2", help="of each process; the best counts")
    parser.add_argument("--processes", default="1", help="of pfl, which share its users")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds for all")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    told = parser.parse_args(words)
    fewer = dict(each.split("=") for each in told.rounds_of.split(",") if each)
    pythons = {name: getattr(told, f"{name}_python", sys.executable) for name in PEERS}
    peers = [
        Peer(
            name,
            pythons[name],
            int(fewer.get(name, told.rounds)),
            int(threads),
            int(processes),
            getattr(told, f"{name}_path", ""),
        )
        for name in PEERS
        if name in told.peers.split(",")
        for threads in OWN_THREADS.get(name, told.threads).split(",")
        for processes in (told.processes.split(",") if name == "pfl" else "1")
    ]
    earlier = kept(told.out)
    first = 1 + max((int(row["run"]) for row in earlier if row["work"] == told.work), default=-1)
    numbers = range(first, first + told.runs)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.pt"
        torch.save(samples(told.work, told.data), path)
        for row in measured(peers, told.work, path, told.device, numbers, told.limit):
            rows.append(row)
            if told.out:
                keep(told.out, [*earlier, *rows])
    print(*summary(rows), sep="\n")


def keep(out: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write all runs down."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def kept(out: Path | None) -> list[dict[str, str]]:
    """Rows of runs before this one."""
    if out is None or not out.exists():
        return []
    with out.open() as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
