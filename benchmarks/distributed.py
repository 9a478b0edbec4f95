"""Averaging over slow links: torch's, accelerate's and torchft's ways against ours, and the plan.

    sudo python benchmarks/distributed.py [--quick] [--latency 20] [--only partial,averager]
    sudo python benchmarks/distributed.py --all-reduces [--latency 20]

Four gloo processes, each in a network namespace of its own behind a link of 100 Mbit/s (network.py;
bytes are those on its interface), train the same model of ten million parameters in the same loop.
A step is a forward and backward pass and SGD with momentum on a batch of 4, and then a sleep that
makes it as long as the transfer of a part: four processes share this machine's cores, and a worker
that sleeps leaves its core to the others as a GPU would. DDP, which exchanges in its backward pass,
gets the sleep for nothing. Rows take turns, a repeat of all of them in new processes. Times are
medians over the repeats; one repeat's time is the mean of all iterations after a cycle of warm-up,
of the slowest worker.
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
from typing import Any, NamedTuple

import torch
from network import Site, require, sites

from partavg.core.schedule import Schedule
from partavg.core.wire_formats import WIRE_FORMATS
from partavg.cost import Network, Workload, cost

WORKERS = 4
INTERVAL = 8
LAYERS = 4
PARAMETERS = 10_020_874
SIZES = (4_000, 40_000, 400_000, 1_000_000, 5_000_000, 20_000_000, 40_000_000)

Runs = dict[str, list[dict[str, float]]]
"""What the repeats of each row measured."""


class Row(NamedTuple):
    """Method, its options, and the schedule and delay to plan for."""

    method: str
    options: dict[str, Any] = {}  # noqa: RUF012
    schedule: Schedule | None = None
    delay: int = 0


def ours(parts: int, delay: int = 0, wire: str = "full", **options: Any) -> Row:
    """A row of partavg.attach."""
    options |= {"parts": parts, "delay": delay, "wire": wire}
    return Row("ours", options, Schedule(INTERVAL, parts), delay)


def diloco(layers: bool, delay: int = 0) -> Row:
    """A row of torchft's DiLoCo."""
    options = {"layers": layers, "delay": delay}
    return Row("torchft_diloco", options, Schedule(INTERVAL, LAYERS if layers else 1), delay)


ROWS: dict[str, Row] = {
    "alone": Row("alone"),
    "ddp": Row("ddp", schedule=Schedule.synchronous()),
    "averager": Row("averager", schedule=Schedule(INTERVAL)),
    "local_sgd": Row("local_sgd", schedule=Schedule(INTERVAL)),
    "periodic": ours(1),
    "4 parts": ours(4),
    "partial": ours(INTERVAL),
    "overlapped": ours(INTERVAL, delay=1),
    "partial bf16": ours(INTERVAL, wire="bf16"),
    "partial int8": ours(INTERVAL, wire="int8"),
    "partial int4": ours(INTERVAL, wire="int4"),
    "partial top-k": ours(INTERVAL, wire="top-k"),
    "partial int4 overlapped": ours(INTERVAL, delay=1, wire="int4"),
    "torchft local_sgd": Row("torchft_local_sgd", schedule=Schedule(INTERVAL)),
    "torchft diloco": diloco(layers=False),
    "ours diloco": ours(1, outer=True),
    "torchft diloco by layer": diloco(layers=True),
    "ours diloco by layer": ours(LAYERS, outer=True, partition="layer"),
    "torchft diloco by layer overlapped": diloco(layers=True, delay=1),
    "ours diloco by layer overlapped": ours(LAYERS, delay=1, outer=True, partition="layer"),
    "ours diloco partial": ours(INTERVAL, outer=True),
    "ours diloco partial int4": ours(INTERVAL, wire="int4", outer=True),
}


def launch(places: list[Site], tasks: list[dict[str, Any]], limit: float) -> list[tuple[Any, ...]]:
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
    except subprocess.TimeoutExpired:
        sys.exit(f"the workers did not end within {limit:.0f} s: see above how far they came")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(process.returncode for process in processes):
        sys.exit("a worker failed: see above")
    return list(zip(*(map(json.loads, text.splitlines()) for text in said), strict=True))


def task(name: str, step: float, cycles: int) -> dict[str, Any]:
    """What the workers are told to do for a row."""
    row = ROWS[name]
    short = row.method == "ddp"  # every iteration is a cycle
    return {
        "method": row.method,
        "options": row.options,
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


def report(runs: Runs, network: Network) -> None:
    """A line per row, in Markdown."""
    headings = ["row", "iterations/s (range)", "s/iteration", "planned", "MB/iteration on the link"]
    headings += ("MB by our count", "messages", "communication hidden", "time")
    print(f"\n| {' | '.join(headings)} |\n{'|---' * len(headings)}|")
    for name, found in runs.items():
        own, (low, high) = time(runs, name), (f(e["seconds"] for e in found) for f in (min, max))
        counted = network.traffic(median(each["counted"] for each in found)) / 1e6
        cells = [name, f"{1 / own:.3f} ({1 / high:.3f} to {1 / low:.3f})", f"{own:.3f}"]
        cells += [_planned(runs, name, network)]
        cells += [f"{median(each['bytes'] for each in found) / 1e6:.2f}"]
        cells += [f"{counted:.2f}", f"{found[0]['messages']:.3g}"] if counted else ["", ""]
        cells += [_hidden(runs, name), _ratio(runs, name)]
        print(f"| {' | '.join(cells)} |")


def time(runs: Runs, name: str) -> float:
    """Seconds of an iteration."""
    return median(each["seconds"] for each in runs[name])


def _planned(runs: Runs, name: str, network: Network) -> str:
    """What `partavg plan` says, given the step that was measured alone."""
    schedule, delay = ROWS[name].schedule, ROWS[name].delay
    if not schedule or "alone" not in runs:
        return ""
    wire = WIRE_FORMATS[ROWS[name].options.get("wire", "full")]
    workload = Workload(PARAMETERS, time(runs, "alone"), wire.bytes_per_number)
    planned = cost(workload, network, schedule, delay).seconds
    return f"{planned:.3f} ({100 * (planned / time(runs, name) - 1):+.0f} %)"


def _hidden(runs: Runs, name: str) -> str:
    """Of the time that the same plan adds without delay, the share that delay saves."""
    at_once = name.removesuffix("overlapped").strip() or "partial"
    if not ROWS[name].delay or not {"alone", at_once} <= runs.keys():
        return ""
    step = time(runs, "alone")
    return f"{100 * (1 - (time(runs, name) - step) / (time(runs, at_once) - step)):.0f} %"


def _ratio(runs: Runs, name: str) -> str:
    """Median of the ratios, repeat by repeat, to torchft's row or to PeriodicModelAverager."""
    same = name.replace("ours", "torchft") if name.startswith("ours") else ""
    other = same if same in runs else "averager"
    if other not in runs or ROWS[name].method != "ours":
        return ""
    pairs = zip(runs[name], runs[other], strict=True)
    return f"{median(a['seconds'] / b['seconds'] for a, b in pairs):.3f} of {other}"


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
    if not set(names) <= ROWS.keys():
        sys.exit(f"--only {arguments.only} is not known: use some of {','.join(ROWS)}")
    runs: Runs = {name: [] for name in names}
    with sites(WORKERS, arguments.megabits, arguments.latency / 1e3) as places:
        if arguments.all_reduces:
            all_reduces(places, network, repeats)
            return
        print(
            f"steps of {step:.3f} s, {cycles} cycles of {INTERVAL}, {repeats} repeats", flush=True
        )
        for _ in range(repeats):
            tasks = [task(name, step, cycles) for name in names]
            for name, found in zip(
                names, launch(places, tasks, limit=300 + 40 * len(names) * cycles), strict=True
            ):
                runs[name].append(joined(found))
    report(runs, network)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; the namespaces are gone")
