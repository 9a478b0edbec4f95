"""Very many clients, of which few are active: set-up, memory, redraws, steps and checkpoints.

    python benchmarks/clients.py [--quick] [--out results/benchmarks/clients.csv]

Every number of clients has a process of its own, so that its memory can be told. There a
simulation of all of them takes turns with one of as many clients as are active, which draws none
and keeps nothing: the same model, solver and personal columns. Steps between redraws are compared
in pairs; a redraw is the first step after a draw, less the median step. Clients keep SCAFFOLD's
control and a personal last layer with its momentum, in host memory.
"""

import argparse
import csv
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import torch
from torch.nn import functional as F

import partavg
from partavg import checkpoint
from partavg.client_files import ClientFiles
from partavg.models import mlp

COUNTS = (1_000, 10_000, 100_000)
EVERY, EACH, FEATURES = 10, 10, 64
Row = dict[str, float]


def simulation(clients: int, active: int) -> partavg.Simulation:
    """A small network; each client owns ten samples of its own."""
    torch.manual_seed(0)
    samples = torch.randn(clients * EACH, FEATURES)
    classes = torch.randint(0, 10, (clients * EACH,))
    return partavg.Simulation(
        mlp((FEATURES,), 10, hidden=(64,)),
        F.cross_entropy,
        (samples, classes),
        partavg.iid(classes, clients, seed=0),
        schedule=partavg.Schedule.partial(EVERY),
        solver=partavg.SCAFFOLD(partavg.SGD(momentum=0.9)),
        local=["3.*"],
        participation=partavg.Participation(clients, active, EVERY if clients > active else 0),
        bank="cpu",
        engine="vmapped",
        batch=EACH,
        lr=0.1,
    )


def cycle(made: partavg.Simulation) -> list[float]:
    """Seconds of the steps from one draw to the next."""
    times, train = [], made.train(made.workers.step + EVERY)
    for _ in range(EVERY):
        began = perf_counter()
        next(train)
        times.append(perf_counter() - began)
    return times


def resident() -> float:
    """The most memory that this process had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measure(clients: int, active: int, rounds: int) -> Row:
    """All that is said of a number of clients."""
    few = simulation(active, active)
    cycle(few)
    before, began = resident(), perf_counter()
    many = simulation(clients, active)
    ready, made = perf_counter() - began, resident()
    cycle(many)
    redraws, ratios, steps = [], [], []
    for _ in range(rounds):
        first, *rest = cycle(many)
        alone = median(cycle(few)[1:])
        steps.append(median(rest))
        ratios.append(steps[-1] / alone)
        redraws.append(first - steps[-1])
    row = {
        "clients": clients,
        "active": active,
        "rounds": rounds,
        "setup_s": ready,
        "setup_mb": made - before,
        "samples_mb": many.samples.bytes / 1e6,
        "trained_mb": resident() - made,
        **spread("redraw_ms", redraws),
        **spread("step_ms", steps),
        **{name: value / 1e3 for name, value in spread("step_ratio", ratios).items()},
    }
    return {**row, **kept(many), **saved(many)}


def kept(made: partavg.Simulation) -> Row:
    """What clients keep, and what it would be with a row for each of them."""
    banks = made.workers.bank.values()
    width = sum(bank.first.nbytes for bank in banks)
    known = max((len(bank.known) for bank in banks), default=0)
    return {
        "known": known,
        "bank_mb": width * known / 1e6,
        "bank_of_all_mb": width * len(made.split) / 1e6,
    }


def saved(made: partavg.Simulation) -> Row:
    """The first checkpoint and, after a redraw, the next: how long they take, and how large."""
    made.state(whole=False)  # which makes digests of samples and split, once
    found: Row = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = ClientFiles(folder)
        for which in ("first", "next"):
            before, began = set(folder.iterdir()), perf_counter()
            state = made.state(whole=files.begin_anew)
            state["bank"], beside = files.save(state["bank"])
            checkpoint.save(folder, made.workers.step, {"workers": state, "beside": beside})
            found[f"{which}_save_s"] = perf_counter() - began
            new = set(folder.iterdir()) - before
            found[f"{which}_save_mb"] = sum(path.stat().st_size for path in new) / 1e6
            made.saved()
            cycle(made)
    return found


def spread(name: str, seconds: list[float]) -> Row:
    """Median and quartiles in milliseconds."""
    low, middle, high = (1e3 * q for q in quantiles(seconds, n=4))
    return {name: middle, f"{name}_low": low, f"{name}_high": high}


def apart(clients: int, active: int, rounds: int) -> Row:
    """The same, in a process of its own."""
    given = [str(number) for number in (clients, active, rounds)]
    command = [sys.executable, __file__, "--one", *given]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    row: Row = json.loads(told)
    return row


def write(rows: Iterable[Row], path: Path) -> None:
    """A line for each number of clients."""
    rows = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        lines = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        lines.writeheader()
        for row in rows:
            lines.writerow({name: f"{value:.6g}" for name, value in row.items()})


def say(row: Row) -> None:
    """A number of clients in a few lines."""
    print(
        f"{row['clients']:,.0f} clients, {row['active']:.0f} active: set up in "
        f"{row['setup_s']:.2f} s with {row['setup_mb']:.0f} MB more, {row['samples_mb']:.0f} MB of "
        f"them samples; training took {row['trained_mb']:.0f} MB more\n"
        f"  a redraw {row['redraw_ms']:.1f} ms ({row['redraw_ms_low']:.1f} to "
        f"{row['redraw_ms_high']:.1f}), a step {row['step_ms']:.2f} ms, "
        f"{row['step_ratio']:.2f} ({row['step_ratio_low']:.2f} to {row['step_ratio_high']:.2f}) "
        f"times that of {row['active']:.0f} clients; n = {row['rounds']:.0f}\n"
        f"  {row['known']:,.0f} clients keep {row['bank_mb']:.1f} MB, all would "
        f"{row['bank_of_all_mb']:,.1f}; the first checkpoint {row['first_save_mb']:.1f} MB in "
        f"{row['first_save_s']:.2f} s, the next {row['next_save_mb']:.1f} MB in "
        f"{row['next_save_s']:.2f} s",
        flush=True,
    )


def main() -> None:
    """Print what was measured, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer clients and rounds")
    parser.add_argument("--active", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    print(f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
          f"{torch.get_num_threads()} threads", flush=True)  # fmt: skip
    counts, rounds = (COUNTS[:1], 5) if options.quick else (COUNTS, options.rounds)
    rows = []
    for clients in counts:
        rows.append(apart(clients, options.active, rounds))
        say(rows[-1])
    if options.out:
        write(rows, options.out)


if __name__ == "__main__":
    main()
