"""Averaging over slow links: torch's and accelerate's ways against ours, and against the plan.

    sudo python benchmarks/distributed.py [--quick] [--latency 20] [--only partial,averager]
    sudo python benchmarks/distributed.py --all-reduces [--latency 20]

Four gloo processes, each in a network namespace of its own behind a link of 100 Mbit/s (network.py;
bytes are those on its interface), train the same model of ten million parameters in the same loop.
A step is a forward and backward pass and SGD with momentum on a batch of 4, and a sleep that makes
it as long as the transfer of a part: four processes share this machine's cores, and a worker that
sleeps leaves its core to the others as a GPU would. Rows take turns, a repeat of all of them in
new processes. Times are medians over the repeats; one repeat's time is the mean of all iterations
after a cycle of warm-up, of the slowest worker.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from network import Site, require, sites

from partavg.core.schedule import Schedule
from partavg.cost import Job, Network, cost

WORKERS = 4
INTERVAL = 8
PARAMETERS = 10_020_874
SIZES = (4_000, 40_000, 400_000, 1_000_000, 5_000_000, 20_000_000, 40_000_000)

Row = tuple[str, dict[str, Any], Schedule | None, int]
"""Method, its options, and the schedule and delay to plan for."""

ROWS: dict[str, Row] = {
    "alone": ("alone", {}, None, 0),
    "ddp": ("ddp", {}, Schedule.synchronous(), 0),
    "averager": ("averager", {}, Schedule(INTERVAL), 0),
    "local_sgd": ("local_sgd", {}, Schedule(INTERVAL), 0),
    "periodic": ("ours", {"parts": 1}, Schedule(INTERVAL), 0),
    "4 parts": ("ours", {"parts": 4}, Schedule(INTERVAL, 4), 0),
    "partial": ("ours", {"parts": INTERVAL}, Schedule.partial(INTERVAL), 0),
    "partial, delay 1": (
        "ours",
        {"parts": INTERVAL, "delay": 1},
        Schedule.partial(INTERVAL),
        1,
    ),
}


def launch(places: list[Site], tasks: list[dict[str, Any]], limit: float) -> list[list[Any]]:
    """Run one worker in each namespace to its end, and read what all measured in each task."""
    program = str(Path(__file__).with_name("distributed_worker.py"))
    processes = []
    for rank, site in enumerate(places):
        variables = {
            "MASTER_ADDR": places[0].address,
            "MASTER_PORT": "29500",
            "WORLD_SIZE": str(len(places)),
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        processes.append(
            subprocess.Popen(
                site.command(sys.executable, program, json.dumps(tasks)),
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [process.communicate(timeout=limit)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(process.returncode for process in processes):
        raise RuntimeError("a worker failed: see above")
    return list(zip(*(map(json.loads, text.splitlines()) for text in said), strict=True))


def task(name: str, step: float, cycles: int) -> dict[str, Any]:
    """What the workers are told to do for a row."""
    method, options, _, _ = ROWS[name]
    short = method == "ddp"  # every iteration is a cycle
    return {
        "method": method,
        "options": options,
        "interval": INTERVAL,
        "step": step,
        "batch": 4,
        "warmup": 1 if short else INTERVAL,
        "iterations": 2 * cycles if short else cycles * INTERVAL,
    }


def joined(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """The slowest worker's seconds, the mean of all workers' counts."""
    counts = {key: mean(each[key] for each in found) for key in ("bytes", "counted", "messages")}
    return {"seconds": max(each["seconds"] for each in found), **counts}


def report(runs: dict[str, list[dict[str, float]]], network: Network, step: float) -> None:
    """A line per row, in Markdown."""
    times = {name: median(each["seconds"] for each in found) for name, found in runs.items()}
    headings = ("row", "iterations/s (range)", "s/iteration", "planned", "MB/iteration on the link")
    headings += ("MB by our count", "messages", "communication hidden", "time against averager")
    print(f"\n| {' | '.join(headings)} |\n{'|---' * len(headings)}|")
    for name, found in runs.items():
        _, _, schedule, delay = ROWS[name]
        rates = sorted(1 / each["seconds"] for each in found)
        own = times[name]
        cells = [name, f"{1 / own:.3f} ({rates[0]:.3f} to {rates[-1]:.3f})", f"{own:.3f}"]
        if schedule:
            planned = cost(Job(PARAMETERS, times.get("alone", step)), network, schedule, delay)
            cells.append(f"{planned.seconds:.3f} ({100 * (planned.seconds / own - 1):+.0f} %)")
        else:
            cells.append("")
        counted = network.traffic(median(each["counted"] for each in found)) / 1e6
        cells += [f"{median(each['bytes'] for each in found) / 1e6:.2f}"]
        cells += [f"{counted:.2f}", f"{found[0]['messages']:.3g}"] if counted else ["", ""]
        cells += [_hidden(times, name, delay), _ratio(runs, name)]
        print(f"| {' | '.join(cells)} |")


def _hidden(times: dict[str, float], name: str, delay: int) -> str:
    """Of the time that the same plan adds without delay, the share that delay saves."""
    if not delay or not {"alone", "partial"} <= times.keys():
        return ""
    added = times["partial"] - times["alone"]
    return f"{100 * (1 - (times[name] - times['alone']) / added):.0f} %"


def _ratio(runs: dict[str, list[dict[str, float]]], name: str) -> str:
    """Median of the ratios to PeriodicModelAverager, repeat by repeat."""
    if "averager" not in runs or ROWS[name][0] != "ours":
        return ""
    pairs = zip(runs[name], runs["averager"], strict=True)
    return f"{median(a['seconds'] / b['seconds'] for a, b in pairs):.3f}"


def all_reduces(places: list[Site], network: Network, repeats: int) -> None:
    """Gloo's all-reduce by itself, against the plan."""
    print("\n| bytes | measured, s (range) | planned, s |\n|---|---|---|")
    (found,) = launch(places, [{"sizes": SIZES, "repeats": repeats}], limit=120 + 30 * repeats)
    for size in SIZES:
        slowest = sorted(map(max, *(each[str(size)] for each in found)))
        own, planned = median(slowest), network.seconds(size)
        print(
            f"| {size:,} | {own:.4f} ({slowest[0]:.4f} to {slowest[-1]:.4f}) "
            f"| {planned:.4f} ({100 * (planned / own - 1):+.0f} %) |"
        )


def main() -> None:
    """Make the network, run the rows, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repeat of one cycle")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cycles", type=int, default=3, help="measured in a repeat")
    parser.add_argument("--megabits", type=float, default=100.0, help="per second, of each link")
    parser.add_argument("--latency", type=float, default=0.0, help="milliseconds, by a relay")
    parser.add_argument("--only", help="rows, separated by commas")
    parser.add_argument("--all-reduces", action="store_true", help="gloo's collective by itself")
    arguments = parser.parse_args()
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}"
    )
    require()
    repeats, cycles = (1, 1) if arguments.quick else (arguments.repeats, arguments.cycles)
    network = Network(WORKERS, arguments.megabits * 1e6 / 8, arguments.latency / 1e3)
    step = network.seconds(4 * PARAMETERS / INTERVAL)
    print(f"{WORKERS} workers, {arguments.megabits:g} Mbit/s, {arguments.latency:g} ms")
    names = arguments.only.split(",") if arguments.only else list(ROWS)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with sites(WORKERS, arguments.megabits, arguments.latency / 1e3) as places:
        if arguments.all_reduces:
            all_reduces(places, network, repeats)
            return
        print(
            f"steps of {step:.3f} s, {cycles} cycles of {INTERVAL}, {repeats} repeats", flush=True
        )
        for _ in range(repeats):
            tasks = [task(name, step, cycles) for name in names]
            for name, found in zip(names, launch(places, tasks, limit=1000), strict=True):
                runs[name].append(joined(found))
    report(runs, network, step)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; the namespaces are gone")
