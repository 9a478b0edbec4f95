"""How an iteration grows with the number of workers and of parameters, beside a plain loop.

    python benchmarks/growth.py [--rounds 5] [--out results/benchmarks/growth.csv]

MLPs on a CPU, batch 32. Ours gathers its batches, steps with momentum, averages an eighth of the
model; the loop has batches ready and averages nothing. Both sides take turns; medians of rounds.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

from engines import plain_loop, simulation, take_turns
from partavg.models import mlp

WORKERS = (16, 64, 256, 1024, 4096)
WIDTHS = (32, 128, 512, 1024, 2048)
FEW = 16
"""Workers with which parameters grow."""
LOOPED = 1024
"""More workers than this take a plain loop longer than is worth waiting for."""
COLUMNS = "grows", "workers", "parameters", "side", "engine", "n", "ms", "fastest", "slowest"


def sizes() -> Iterator[tuple[str, int, int]]:
    """What grows, workers, and the width of both hidden layers."""
    yield from (("workers", workers, 64) for workers in WORKERS)
    yield from (("parameters", FEW, width) for width in WIDTHS)


def measure(grows: str, workers: int, width: int, rounds: int) -> Iterator[dict[str, object]]:
    """A row for ours, and one for the loop."""
    torch.manual_seed(0)
    x, y = torch.randn(workers, 32, 64), torch.randint(10, (workers, 32))
    model = mlp((64,), 10, hidden=(width, width))
    ours = simulation(model, workers, x, y, 8)
    records = ours.train(until=10**9)
    sides = {"partavg": lambda: (next(records), None)[1]}
    if workers <= LOOPED:
        sides["loop"] = plain_loop(model, workers, x, y)
    for _ in range(3):
        next(records)
    count = sum(p.numel() for p in model.parameters())
    for side, seconds in take_turns(rounds, **sides).items():
        times = [1e3 * value for value in seconds]
        shown = (f"{value:.4g}" for value in (median(times), min(times), max(times)))
        engine = ours.engine.name if side == "partavg" else ""
        values = grows, workers, count, side, engine, rounds, *shown
        yield dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    """Print and write down a row for each size and side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    told = parser.parse_args()
    rows = [row for size in sizes() for row in measure(*size, told.rounds)]
    for row in rows:
        print(*row.values())
    if told.out:
        told.out.parent.mkdir(parents=True, exist_ok=True)
        with told.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
