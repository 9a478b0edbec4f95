"""Samples in host memory against samples on the device: time and memory of an iteration.

    python benchmarks/host_memory.py [--quick] [--larger]

Both sides train the same model on the same images in one run and take turns; times are medians,
after a step that must give the same parameters bit by bit. On a CPU both read the same memory, and
the thread that gathers a step ahead is all that differs. `--larger` makes images that take 1.25
times the memory of the GPU, in a file that is mapped, and trains on them.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import partavg
from engines import spread, take_turns
from partavg.data.memory import readable
from partavg.models import mlp, resnet20

WORKERS, BATCH, SHAPE = 128, 32, (3, 32, 32)


def simulation(
    samples: partavg.Samples, store: str, device: torch.device, *, small: bool
) -> partavg.Simulation:
    """ResNet-20 on 128 workers, or a small network where that would take long."""
    torch.manual_seed(0)
    return partavg.Simulation(
        mlp(SHAPE, 10, hidden=(32,)) if small else resnet20(SHAPE, 10),
        F.cross_entropy,
        samples,
        partavg.iid(samples.targets, WORKERS, seed=0),
        schedule=partavg.Schedule.partial(8),
        solver=partavg.SGD(momentum=0.9, weight_decay=1e-4),
        transform=partavg.Images.fit(samples.inputs[:5000], crop=4, flip=True),
        lr=0.1,
        batch=BATCH,
        store=store,  # type: ignore[arg-type]
        device=device,
        deterministic=True,
    )


def compare(count: int, rounds: int, device: torch.device) -> None:
    """Train from both stores in turns; print times and their ratio."""
    images = torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8)
    samples = partavg.Samples(images, torch.arange(count) % 10)
    sides = {
        store: simulation(samples, store, device, small=device.type == "cpu")
        for store in ("device", "host")
    }
    for side in sides.values():
        list(side.train(3))
    same = torch.equal(*(side.workers.params for side in sides.values()))
    print(f"{readable(samples.bytes)} of images; the same parameters after 3 steps: {same}")

    def step(side: partavg.Simulation) -> None:
        for _ in range(10):
            list(side.train(side.workers.step + 1))
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    near, far = sides["device"], sides["host"]
    times = take_turns(rounds, device=lambda: step(near), host=lambda: step(far))
    for store, seconds in times.items():
        print(f"{store:8} {spread([each / 10 for each in seconds])} an iteration")
    middle = {store: float(np.median(seconds)) for store, seconds in times.items()}
    print(f"host / device: {middle['host'] / middle['device']:.3f}")


def train_larger(device: torch.device, steps: int) -> None:
    """Train on more images than the GPU has memory, from a file."""
    total = torch.cuda.get_device_properties(device).total_memory
    count = int(1.25 * total) // int(np.prod(SHAPE))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npy"
        images = np.lib.format.open_memmap(path, "w+", np.uint8, (count, *SHAPE))  # holes: no room
        samples = partavg.as_samples((images, np.arange(count) % 10))
        made = simulation(samples, "auto", device, small=False)
        torch.cuda.reset_peak_memory_stats(device)
        list(made.train(steps))
        peak = torch.cuda.max_memory_allocated(device)
        print(
            f"{readable(samples.bytes)} of images, {readable(total)} of GPU memory: store "
            f"{made.store}, {steps} steps, at most {readable(peak)} used"
        )


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--larger", action="store_true")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {name}, {torch.get_num_threads()} threads")
    compare(10_000 if options.quick else 50_000, 5 if options.quick else 15, device)
    if options.larger and device.type == "cuda":
        train_larger(device, 20)


if __name__ == "__main__":
    main()
