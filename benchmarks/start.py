"""How long it takes until something happens: help on the command line, and a first step.

    python benchmarks/start.py [--runs 5] [--model resnet20] [--workers 128] [--device cuda]

Processes that begin afresh, in turns; medians of seconds, fastest and slowest. On a GPU
run it twice: the first time may compile kernels (PARTAVG_KERNELS=off and an empty TRITON_CACHE_DIR
show what that takes).
"""

import argparse
import os
import statistics
import subprocess
import sys
from time import perf_counter

STEP = """
from time import perf_counter as now
times = [now()]
import partavg, torch
times.append(now())
device = torch.device("{device}")
torch.zeros(1, device=device).item()
times.append(now())
from partavg.models import MODELS
torch.manual_seed(0)
x, y = torch.randn(2048, 3, 32, 32), torch.randint(10, (2048,))
model = MODELS["{model}"]((3, 32, 32), 10)
split = partavg.iid(y, workers={workers}, seed=0)
simulation = partavg.Simulation(
    model, torch.nn.functional.cross_entropy, (x, y), split, batch=32, lr=0.1, device=device,
    schedule=partavg.Schedule.partial(8), solver=partavg.SGD(momentum=0.9),
)
times.append(now())
for _ in range(3):
    for record in simulation.train(simulation.workers.step + 1):
        record.losses.sum().item()
    times.append(now())
print(*(later - earlier for earlier, later in zip(times, times[1:])))
"""
PARTS = "import torch", "the device", "the simulation", "first step", "second step", "third step"


def timed(command: list[str]) -> tuple[float, list[float]]:
    """Seconds that a command takes, and those that it says itself."""
    start = perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    said = done.stdout.splitlines()[-1] if command[1] == "-c" else ""
    return perf_counter() - start, [float(word) for word in said.split()]


def line(name: str, values: list[float]) -> str:
    """The median, and between what."""
    low, high = min(values), max(values)
    return f"{name}: {statistics.median(values):.2f} s ({low:.2f} to {high:.2f}, n = {len(values)})"


def main() -> None:
    """Print a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--workers", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    program = STEP.format(device=given.device, model=given.model, workers=given.workers)
    helps, steps = [], []
    for _ in range(given.runs):
        helps.append(timed([sys.executable, "-m", "partavg", "--help"])[0])
        steps.append(timed([sys.executable, "-c", program])[1])
    print(line("partavg --help", helps))
    for name, values in zip(PARTS, zip(*steps, strict=True), strict=True):
        print(line(name, list(values)))
    print(line("all until the first step is done", [sum(row[:4]) for row in steps]))


if __name__ == "__main__":
    main()
