"""Workers dealt over the ranks of torchrun against one process that has them all.

    python benchmarks/ranks.py [--quick] [--ranks 2,4] [--out results/benchmarks/ranks.csv]

Every process computes with one thread. One process and all ranks take turns in the same run: while
the first has all workers by itself, the others wait for it, asleep. The efficiency is the time of
one process over that of all ranks, divided by how many ranks there are; with more ranks than cores
it cannot reach 1, so the efficiency by cores stands beside it. Both train alike: the largest
difference of their models after the first step is told, too.
"""

import argparse
import csv
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import partavg
from partavg.backends.processes import Processes, dealt_evenly
from partavg.backends.ranks import connect
from partavg.models import cnn, mlp


class Task(NamedTuple):
    """What is trained, and how many steps are timed together."""

    shape: tuple[int, ...]
    workers: int
    steps: int
    engine: str

    def model(self) -> nn.Module:
        """The network that all workers train."""
        if len(self.shape) > 1:
            return cnn(self.shape, 62)
        return mlp(self.shape, 10, hidden=(64,) if self.shape == (64,) else (256, 256))


TASKS = {
    "mlp, 128 workers": Task((64,), 128, 40, "vmapped"),
    "mlp, 129 workers": Task((64,), 129, 40, "vmapped"),
    "wide mlp, 129 workers": Task((784,), 129, 4, "vmapped"),
    "cnn, 16 workers": Task((1, 28, 28), 16, 1, "looped"),
}
BATCH, PARTS = 32, 8
Row = dict[str, Any]


def simulation(task: Task, processes: Processes | None) -> partavg.Simulation:
    """Partial averaging after every step."""
    torch.manual_seed(0)
    model = task.model()
    samples = torch.randn(task.workers * BATCH, *task.shape)
    classes = torch.randint(0, 10, (len(samples),))
    return partavg.Simulation(
        model,
        F.cross_entropy,
        (samples, classes),
        partavg.iid(classes, task.workers, seed=0),
        schedule=partavg.Schedule.partial(PARTS),
        solver=partavg.SGD(momentum=0.9),
        engine=task.engine,
        batch=BATCH,
        lr=0.05,
        processes=processes,
    )


def seconds(made: partavg.Simulation, steps: int) -> float:
    """How long some steps take."""
    began = perf_counter()
    for _ in made.train(made.workers.step + steps):
        pass
    return perf_counter() - began


def measure(name: str, processes: Processes, rounds: int) -> Row:
    """A task by one process and by all ranks, in turns."""
    task = TASKS[name]
    shared = simulation(task, processes)
    alone = simulation(task, None) if processes.rank == 0 else None
    times: list[tuple[float, float]] = []
    apart = 0.0
    for turn in range(rounds + 1):
        steps = task.steps if turn else 1  # the first step is compared, and warms up
        one = seconds(alone, steps) if alone else 0.0
        processes.each(0)  # all wait here for the first
        together = max(processes.each(seconds(shared, steps)))
        if turn:
            times.append((one / steps, together / steps))
        else:
            apart = distance(processes, shared, alone)
    rows = [held.stop - held.start for held in dealt_evenly(task.workers, processes.size)]
    cores = len(os.sched_getaffinity(0))
    gains = [one / together for one, together in times]
    low, gain, high = quantiles(gains, n=4)
    return {
        "task": name,
        "ranks": processes.size,
        "cores": cores,
        "rows": " ".join(map(str, rows)),
        "row_mb": shared.workers.params.nbytes / 1e6,
        "rounds": rounds,
        "one_ms": 1e3 * median(one for one, _ in times),
        "ranks_ms": 1e3 * median(together for _, together in times),
        "speedup": gain,
        "speedup_low": low,
        "speedup_high": high,
        "efficiency": gain / processes.size,
        "of_cores": gain / min(processes.size, cores),
        "largest_difference": apart,
    }


def distance(
    processes: Processes, shared: partavg.Simulation, alone: partavg.Simulation | None
) -> float:
    """The largest difference between what ranks and one process trained, in the first process."""
    ours = processes.collect(shared.workers.params, shared.active)
    return float((ours - alone.workers.params).abs().max()) if alone else 0.0


def say(row: Row) -> None:
    """A task and a number of ranks in a line."""
    print(
        f"{row['task']}, {row['ranks']} ranks on {row['cores']} cores with {row['rows']} rows: one "
        f"process {row['one_ms']:.2f} ms a step, ranks {row['ranks_ms']:.2f} ms; "
        f"{row['speedup']:.2f} ({row['speedup_low']:.2f} to {row['speedup_high']:.2f}) times as "
        f"fast, efficiency {row['efficiency']:.0%}, by cores {row['of_cores']:.0%}; n = "
        f"{row['rounds']}; models {row['largest_difference']:.1g} apart",
        flush=True,
    )


def work(rounds: int, out: Path | None) -> None:
    """What a rank does; the first says what was found."""
    torch.set_num_threads(1)
    processes, _ = connect()
    for name in TASKS:
        row = measure(name, processes, rounds)
        if processes.rank == 0:
            say(row)
            if out:
                append(row, out)
    processes.part()


def append(row: Row, path: Path) -> None:
    """A line more in a table, which begins with the names of its columns."""
    begins = not path.exists()
    with path.open("a", newline="") as file:
        lines = csv.DictWriter(file, list(row), lineterminator="\n")
        if begins:
            lines.writeheader()
        numbers = (
            (name, f"{value:.4g}" if isinstance(value, float) else value)
            for name, value in row.items()
        )
        lines.writerow(dict(numbers))


def main() -> None:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 ranks, few rounds")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rounds = 3 if options.quick else options.rounds
    if "RANK" in os.environ:
        work(rounds, options.out)
        return
    print(f"torch {torch.__version__}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
          "one thread in each process", flush=True)  # fmt: skip
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.unlink(missing_ok=True)
    given = ["--rounds", str(rounds), *(["--out", str(options.out)] if options.out else [])]
    for ranks in ["2"] if options.quick else options.ranks.split(","):
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks]
        subprocess.run(
            [*launch, __file__, *given], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )


if __name__ == "__main__":
    main()
