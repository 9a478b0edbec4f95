"""What an aggregate costs: iterations of the demo, one scheme after the other in one process.

    OMP_NUM_THREADS=1 python benchmarks/aggregates.py

prints the processor's time for an iteration with each aggregate, as a multiple of that with the
mean: blocks of iterations take turns, and the median of the ratios counts.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import process_time

import torch

from partavg import build
from partavg.backends.simulate import Simulation
from partavg.config import create
from partavg.recipe import load

AGGREGATES = ("median", "trimmed", "norm_bound", "geometric_median")
SCHEMES = {"partial": 20, "periodic": 1}


def simulation(data: Path, engine: str, *settings: str) -> Simulation:
    """The demo, with an engine that does not change from one run to the next."""
    given = [f"engine.name={engine}", "training.steps=1000000", *settings]
    config = load("demo", given).config()
    samples = create("data", config.data, data)
    return build.simulation(config, samples, torch.device("cpu"))


def seconds(made: Simulation, steps: int) -> float:
    """How long the processor takes for some more iterations, each: others do not count."""
    began = process_time()
    for _ in made.train(made.workers.step + steps):
        pass
    return (process_time() - began) / steps


def ratios(
    data: Path, engine: str, parts: int, weights: str, blocks: int
) -> Iterator[tuple[str, float, float]]:
    """Each aggregate, the seconds of an iteration, and how many of the mean's that is."""
    given = engine, f"averaging.parts={parts}", f"averaging.weights={weights}"
    made = {name: simulation(data, *given, f"aggregate.name={name}") for name in AGGREGATES}
    mean = simulation(data, *given)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    for block in range(blocks + 1):
        for name, other in made.items():
            one, two = seconds(mean, 20), seconds(other, 20)
            if block:  # the first warms up
                found[name].append((two, two / one))
    for name, pairs in found.items():
        yield name, median(time for time, _ in pairs), median(ratio for _, ratio in pairs)


def main() -> None:
    """Measure all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of datasets")
    parser.add_argument("--blocks", type=int, default=9, help="of 20 iterations")
    parser.add_argument("--engine", default="fused", help="fused, vmapped or looped")
    given = parser.parse_args()
    for scheme, parts in SCHEMES.items():
        for weights in ("uniform", "samples"):
            for name, time, ratio in ratios(given.data, given.engine, parts, weights, given.blocks):
                print(f"{scheme:9} {weights:8} {name:17} {1e3 * time:6.1f} ms  {ratio:5.2f}")


if __name__ == "__main__":
    main()
