"""Speed and memory of the engines against a plain PyTorch loop over workers.

    python benchmarks/engines.py [--quick]

Every ratio comes from one run, in which the two sides take turns; times are medians. The loop
holds one nn.Module and one torch.optim.SGD per worker, as one would write it without a library;
it does not average anything. Ours averages a part of the model after every iteration.
"""

import argparse
import copy
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import partavg
from partavg.core.average import collect, deliver_
from partavg.core.cuts import by_channel
from partavg.core.reduce import alone
from partavg.core.solver import Sync
from partavg.core.views import Slices
from partavg.models import cnn, mlp

Timed = Callable[[], None]


def spread(seconds: list[float]) -> str:
    """Median and interquartile range in milliseconds."""
    low, middle, high = (1e3 * q for q in quantiles(seconds, n=4))
    return f"{middle:8.2f} ms (quartiles {low:.2f} to {high:.2f}, n = {len(seconds)})"


def take_turns(rounds: int, **sides: Timed) -> dict[str, list[float]]:
    """Time the sides alternately, so that noise of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side()
    for _ in range(rounds):
        for name, side in sides.items():
            began = perf_counter()
            side()
            times[name].append(perf_counter() - began)
    return times


def plain_loop(model: nn.Module, workers: int, x: torch.Tensor, y: torch.Tensor) -> Timed:
    """One iteration of every worker, one after another."""
    models = [copy.deepcopy(model) for _ in range(workers)]
    solvers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in models]

    def iterate() -> None:
        for worker in range(workers):
            solvers[worker].zero_grad()
            F.cross_entropy(models[worker](x[worker]), y[worker]).backward()
            solvers[worker].step()

    return iterate


def simulation(
    model: nn.Module, workers: int, x: torch.Tensor, y: torch.Tensor, interval: int, **options: Any
) -> partavg.Simulation:
    """The same work with partial averaging after every iteration."""
    batch = x.shape[1]
    return partavg.Simulation(
        model,
        F.cross_entropy,
        (x.flatten(0, 1), y.flatten()),
        list(torch.arange(workers * batch).view(workers, batch)),
        schedule=partavg.Schedule.partial(interval),
        lr=0.01,
        batch=batch,
        solver=partavg.SGD(momentum=0.9),
        **options,
    )


def compare(
    name: str,
    model: nn.Module,
    shape: tuple[int, ...],
    *,
    workers: int,
    batch: int,
    classes: int,
    interval: int,
    iterations: int,
    rounds: int,
) -> None:
    """Time `iterations` iterations of both sides, `rounds` times."""
    x = torch.randn(workers, batch, *shape)
    y = torch.randint(0, classes, (workers, batch))
    loop = plain_loop(model, workers, x, y)
    ours = simulation(model, workers, x, y, interval)
    records = ours.train(until=10**9)

    def loops() -> None:
        for _ in range(iterations):
            loop()

    def steps() -> None:
        for _ in range(iterations):
            next(records)

    times = take_turns(rounds, loop=loops, ours=steps)
    ratio = median(a / b for a, b in zip(times["loop"], times["ours"], strict=True))
    print(f"\n{name}: {workers} workers, batch {batch}, {iterations} iterations")
    print(f"  plain loop      {spread(times['loop'])}")
    print(f"  partavg         {spread(times['ours'])}")
    print(f"  engine {ours.engine.name}: {ours.engine.reason}")
    print(f"  plain loop / partavg = {ratio:.2f}")


def memory(workers: tuple[int, int], engine: str) -> None:
    """Rows of size d that each worker adds to the peak memory of training.

    The peaks of two processes with few and many workers differ by the stacked tensors alone;
    one worker's activations and gradients and the program itself are the same in both.
    """
    few, many = (_peak_of_process(count, engine) for count in workers)
    row = 4 * partavg.Layout.of(dict(_wide().named_parameters())).size
    print(f"\nMLP 784-1024-1024-10: peak memory with SGD and momentum, {engine} engine")
    print(f"  {workers[0]} workers {few / 1e6:.0f} MB, {workers[1]} workers {many / 1e6:.0f} MB")
    print(f"  stacked tensors [m, d]: {(many - few) / (workers[1] - workers[0]) / row:.2f}")


def _wide() -> nn.Module:
    """A model with many parameters and few activations."""
    return mlp((784,), 10, hidden=(1024, 1024))


def _peak_of_process(workers: int, engine: str) -> int:
    command = [sys.executable, __file__, "--peak-of", str(workers), engine]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _print_peak(workers: int, engine: str) -> None:
    x, y = torch.randn(workers, 2, 784), torch.randint(0, 10, (workers, 2))
    for _ in simulation(_wide(), workers, x, y, 8, engine=engine).train(until=8):
        pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def averaging(workers: int, interval: int, rounds: int) -> None:
    """Averaging one part of LEAF's CNN against reading and writing its bytes once."""
    layout = partavg.Layout.of(dict(cnn((1, 28, 28), 62).named_parameters()))
    partition = by_channel(layout, interval)
    rows = torch.randn(workers, layout.size)
    weights = torch.full((workers,), 1 / workers)
    clock = torch.ones(workers, 1, dtype=torch.float64)
    sync = Sync(clock, clock, clock)
    source = torch.randn(workers, partition.sizes[0])
    target = torch.empty_like(source)

    def average() -> None:
        spans, solver = partition.parts[0], partavg.SGD()
        columns = Slices(rows, spans), Slices(rows[:, :0], ())
        arriving, lengths = collect(
            *columns, {}, spans, solver=solver, sync=sync, weights=weights, reduce=alone
        )
        deliver_(*columns, arriving(), lengths, {}, spans, solver=solver, sync=sync)

    def copy() -> None:
        target.copy_(source)

    times = take_turns(rounds, average=average, copy=copy)
    ratio = median(a / b for a, b in zip(times["average"], times["copy"], strict=True))
    print(
        f"\naveraging one of {interval} parts of LEAF's CNN, {workers} workers, "
        f"{source.numel() * 4 / 1e6:.0f} MB in {len(partition.parts[0])} spans"
    )
    print(f"  average         {spread(times['average'])}")
    print(f"  read and write  {spread(times['copy'])}")
    print(f"  average / (read and write) = {ratio:.2f}")


def main() -> None:
    """Run all benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--peak-of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak_of:
        _print_peak(int(arguments.peak_of[0]), arguments.peak_of[1])
        return
    rounds = 5 if arguments.quick else 21
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}"
    )
    torch.manual_seed(0)
    for engine in ("looped", "vmapped"):
        memory((32, 96), engine)
    compare(
        "MLP 64-64-10",
        mlp((64,), 10),
        (64,),
        workers=128,
        batch=32,
        classes=10,
        interval=10,
        iterations=10,
        rounds=rounds,
    )
    compare(
        "LEAF CNN",
        cnn((1, 28, 28), 62),
        (1, 28, 28),
        workers=16,
        batch=32,
        classes=62,
        interval=8,
        iterations=1,
        rounds=rounds,
    )
    averaging(workers=16, interval=8, rounds=rounds)
    averaging(workers=128, interval=64, rounds=rounds)


if __name__ == "__main__":
    main()
