"""How much other work on a machine slows training: threads that spin while they wait, or sleep.

    python benchmarks/busy.py [--runs 5] [--steps 20]

A short training of a simulation as a user's script starts it, alone and beside one busy process for
each core: with torch's threads as they are otherwise, with partavg imported before torch, and after
it. Seconds of training, from fastest to slowest, the ways taking turns, and how many times as long
as partavg's way the others take (medians of the ratios, round by round).
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SPUN = {"GOMP_SPINCOUNT": "300000"}  # what libgomp takes if nobody says anything
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "partavg first": ("partavg, torch", {}),
    "torch first": ("torch, partavg", {}),
    "as libgomp does": ("torch, partavg", SPUN),
}
PROGRAM = """
from time import perf_counter
x, y = torch.randn(4096, 64), torch.randint(10, (4096,))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
simulation = partavg.Simulation(
    model, torch.nn.functional.cross_entropy, (x, y), partavg.iid(y, workers=128, seed=0),
    schedule=partavg.Schedule.partial(8), solver=partavg.SGD(momentum=0.9), lr=0.1,
    engine="vmapped",
)
list(simulation.train(2))
start = perf_counter()
list(simulation.train(2 + {steps}))
print(perf_counter() - start)
"""


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing as fast as they can."""
    started = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def seconds(way: str, steps: int) -> float:
    """What one training takes."""
    imports, said = WAYS[way]
    program = f"import {imports}\n{PROGRAM.format(steps=steps)}"
    unsaid = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"}
    environment = {key: value for key, value in os.environ.items() if key not in unsaid} | said
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    for processes in (0, os.cpu_count() or 1):
        with busy(processes):
            found = [
                {way: seconds(way, options.steps) for way in WAYS} for _ in range(options.runs)
            ]
        for way in WAYS:
            listed = ", ".join(f"{value:.2f}" for value in sorted(row[way] for row in found))
            ratio = statistics.median(row[way] / row["partavg first"] for row in found)
            print(f"{processes} busy processes, {way}: {listed} s, {ratio:.2f} times", flush=True)


if __name__ == "__main__":
    main()
