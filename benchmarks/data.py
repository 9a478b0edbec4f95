"""The data path against the iteration it feeds: 128 workers, 32 CIFAR images each, ResNet-20.

    python benchmarks/data.py [--data ROOT]

Times are medians. With CIFAR-10 under the root (see docs/data.md), loading it is timed, too;
otherwise the images are made up, which changes nothing for the rest.
"""

import argparse
from pathlib import Path
from time import perf_counter

import torch
from torch.nn import functional as F

import partavg
from engines import spread
from partavg.data.dataset import Samples
from partavg.metrics.meter import Stopwatch
from partavg.models import resnet20

WORKERS, BATCH, STEPS, ROUNDS = 128, 32, 2, 21


def images(root: Path | None) -> Samples:
    """CIFAR-10's training set if it is there, timed; else noise."""
    try:
        partavg.load_dataset("cifar10", root)
        began = perf_counter()
        train = partavg.load_dataset("cifar10", root).train
        mapped = perf_counter() - began
        began = perf_counter()
        train.inputs.clone()
        read = perf_counter() - began
        print(f"CIFAR-10 from its cache: {mapped:.3f} s, reading all of it {read:.3f} s")
        return train
    except ValueError as error:
        print(f"made-up images: {error}")
        noise = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
        return Samples(noise, torch.arange(50_000) % 10)


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    train = images(parser.parse_args().data)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    simulation = partavg.Simulation(
        resnet20((3, 32, 32), 10),
        F.cross_entropy,
        train,
        partavg.iid(train.targets, WORKERS, seed=0),
        schedule=partavg.Schedule.partial(8),
        solver=partavg.SGD(momentum=0.9, weight_decay=1e-4),
        transform=partavg.Images.fit(train.inputs, crop=4, flip=True),
        lr=0.1,
        batch=BATCH,
        engine="looped",
    )
    times = []
    for step in range(1, ROUNDS + 1):
        began = perf_counter()
        simulation._batch(step)
        times.append(perf_counter() - began)
    print(f"data path:             {spread(times)}")
    seconds: dict[str, float] = dict.fromkeys(("data", "engine", "solver", "averaging"), 0.0)
    for _ in simulation.train(STEPS, Stopwatch(seconds, torch.device("cpu"))):
        pass
    total = sum(seconds.values())
    for phase, spent in seconds.items():
        print(f"{phase:10} {1e3 * spent / STEPS:10.1f} ms an iteration, {spent / total:6.2%}")


if __name__ == "__main__":
    main()
