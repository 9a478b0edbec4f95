"""Speed of the fused engine on a GPU, beside a plain loop over workers and the best we know of.

    python benchmarks/gpu.py [--out FOLDER] [--skip-compile] [--only WORDS]

Times are medians after a warm-up, all of one run. Ours is the whole iteration: batches gathered
and augmented, losses, gradients, momentum, a part of the model averaged; one after another as in
training, and (`waiting_ms`) with the host waiting for the GPU after each. The loop, one nn.Module
and one torch.optim.SGD per worker, and the rivals of rivals.py (vmap and grouped convolutions, both
compiled, and JAX where it is installed, all in bf16) get their batches ready made and average
nothing. A row that takes longer than in results/benchmarks/measured.csv is said. Language models
are in gpu_texts.py.
"""

import argparse
import csv
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from rivals import by_groups, by_vmap
from rivals_jax import by_jax
from torch import Tensor, nn
from torch.nn import functional as F

import engines
import partavg
from partavg.core.average import collect, deliver_
from partavg.core.cuts import by_channel
from partavg.core.reduce import alone
from partavg.core.solver import Sync
from partavg.core.views import Slices
from partavg.data.images import Images
from partavg.models import MODELS

GPU = torch.device("cuda", 0)
RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"
BUILD: dict[str, Callable[..., nn.Module]] = {
    **MODELS,
    "resnet20_groups": partial(MODELS["resnet20"], norm_groups=8),
}
FORWARD_GFLOP = {"wrn16_8": 3.10, "wrn28_10": 10.5}  # of one 32 x 32 image, convolutions only


def timed(call: Callable[[], object], rounds: int, warm: int) -> list[float]:
    """Milliseconds of each call, the device idle before and after."""
    times = []
    for number in range(warm + rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if number >= warm:
            times.append(1e3 * (time.perf_counter() - began))
    return times


def steady(call: Callable[[], object], rounds: int) -> list[float]:
    """Milliseconds from the end of a call to the end of the next, the host not waiting."""
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    for end in ends:
        call()
        end.record()
    torch.cuda.synchronize()
    return [one.elapsed_time(other) for one, other in pairwise(ends)]


def data(shape: tuple[int, ...], classes: int, workers: int, each: int) -> tuple[Tensor, Tensor]:
    """Made-up samples: bytes for images, word numbers for texts."""
    torch.manual_seed(0)
    words = len(shape) == 1
    inputs = torch.randint(0, 10_000 if words else 256, (workers * each, *shape))
    return (inputs if words else inputs.byte()), torch.randint(0, classes, (workers * each,))


def simulation(
    name: str, shape: tuple[int, ...], classes: int, workers: int, batch: int, **options: Any
) -> partavg.Simulation:
    """What is timed: partial averaging with interval 8 and momentum."""
    inputs, targets = data(shape, classes, workers, 4 * batch)
    images = len(shape) == 3
    transform = Images.fit(inputs, crop=4, flip=True) if images else None
    if transform is not None:
        moved = {"mean": transform.mean.to(GPU), "deviation": transform.deviation.to(GPU)}
        transform = Images(**moved, crop=4, flip=True)
    torch.manual_seed(0)
    return partavg.Simulation(
        BUILD[name](shape, classes),
        F.cross_entropy,
        (inputs, targets),
        list(torch.arange(len(inputs)).view(workers, -1)),
        schedule=partavg.Schedule.partial(8),
        lr=0.01,
        batch=batch,
        solver=partavg.SGD(momentum=0.9),
        transform=transform,
        device=GPU,
        **options,
    )


def ready(shape: tuple[int, ...], classes: int, workers: int, batch: int) -> tuple[Tensor, Tensor]:
    """One batch per worker, on the device, as a model sees it."""
    inputs, targets = (t.to(GPU) for t in data(shape, classes, workers, batch))
    x = inputs if len(shape) == 1 else inputs.float().div_(128).sub_(1)
    return x.view(workers, batch, *shape), targets.view(workers, batch)


def plain_loop(name: str, shape: tuple[int, ...], classes: int, workers: int, batch: int) -> Any:
    """One iteration of every worker, one after another, in torch's default precision."""
    x, y = ready(shape, classes, workers, batch)
    model = BUILD[name](shape, classes).to(GPU)
    return engines.plain_loop(model, workers, x, y)


def rivals(
    name: str, shape: tuple[int, ...], classes: int, workers: int, batch: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    """One iteration by each of the strongest other ways we know, in bf16; JAX's if it is there."""
    x, y = ready(shape, classes, workers, batch)

    def models() -> list[nn.Module]:
        return [BUILD[name](shape, classes).to(GPU) for _ in range(workers)]

    with torch.backends.cudnn.flags(benchmark=True):  # they shall be as fast as they can
        yield "vmap + torch.compile", by_vmap(models(), x, y, torch.bfloat16)
        yield "grouped convolutions, compiled", by_groups(models(), x, y, torch.bfloat16)
    if find_spec("jax"):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU is shared
        iterate = by_jax(models(), x, y, "bfloat16")
        yield "JAX, jit and vmap", lambda: iterate().block_until_ready()


def averaging(layout: partavg.Layout, partition: partavg.Partition, workers: int) -> dict[str, Any]:
    """Averaging a part, against copying as many bytes."""
    rows = torch.randn(workers, layout.size, device=GPU)
    weights = torch.full((workers,), 1 / workers, device=GPU)
    clock = torch.ones(workers, 1, dtype=torch.float64, device=GPU)
    sync = Sync(clock, clock, clock)
    source = torch.randn(workers, partition.sizes[0], device=GPU)
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

    waiting, waiting_copy = median(timed(average, 30, 5)), median(timed(copy, 30, 5))
    ours, theirs = median(steady(average, 30)), median(steady(copy, 30))
    return {
        "ms": ours,
        "copy_ms": theirs,
        "share_of_copy_bandwidth": theirs / ours,
        "waiting_ms": waiting,
        "waiting_share": waiting_copy / waiting,
    }


def matrix_rate() -> float:
    """TFLOP/s of a large dense product in bf16."""
    a, b = (torch.randn(8192, 8192, device=GPU, dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / median(timed(lambda: a @ b, 10, 3)) / 1e9


ROWS: tuple[tuple[str, str, tuple[int, ...], int, int, int], ...] = (
    ("ResNet-20, 128 workers", "resnet20", (3, 32, 32), 10, 128, 32),
    ("ResNet-20, 32 workers", "resnet20", (3, 32, 32), 10, 32, 32),
    ("ResNet-20 with GroupNorm, 128 workers", "resnet20_groups", (3, 32, 32), 10, 128, 32),
    ("ResNet-20 with GroupNorm, 32 workers", "resnet20_groups", (3, 32, 32), 10, 32, 32),
    ("VGG-11, 128 workers", "vgg11", (1, 28, 28), 10, 128, 32),
    ("LEAF CNN, 128 workers", "cnn", (1, 28, 28), 62, 128, 32),
    ("LSTM(256), 128 workers", "lstm", (200,), 2, 128, 10),
    ("LSTM(256), 32 workers", "lstm", (200,), 2, 32, 10),
    ("WRN-16-8, 128 workers", "wrn16_8", (3, 32, 32), 10, 128, 32),
    ("WRN-28-10, 128 workers", "wrn28_10", (3, 32, 32), 10, 128, 32),
)


def measure(
    name: str, shape: tuple[int, ...], classes: int, workers: int, batch: int, compiled: bool
) -> dict[str, Any]:
    """Ours and what stands beside it."""
    large = name.startswith("wrn")
    rounds, warm = (3, 3) if large else (30, 10)
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    ours = simulation(name, shape, classes, workers, batch)
    records = ours.train(until=10**9)
    waiting = timed(lambda: next(records), rounds, warm)
    times = steady(lambda: next(records), rounds)
    found: dict[str, Any] = {
        "ms": median(times),
        "quartiles": quantiles(times, n=4),
        "waiting_ms": median(waiting),
        "n": rounds,
        "engine": f"{ours.engine.name}, chunk {ours.engine.chunk}, {ours.engine.precision}",
        "reason": ours.engine.reason,
        "start_s": time.perf_counter() - began - sum(times + waiting) / 1e3,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }
    del ours, records
    torch.cuda.empty_cache()
    if large:
        flop = 3e9 * FORWARD_GFLOP[name] * workers * batch
        found["tflops"] = flop / found["ms"] / 1e9
        return found
    loop = timed(plain_loop(name, shape, classes, workers, batch), 3, 1)
    found |= {"loop_ms": median(loop), "over_loop": median(loop) / found["ms"]}
    torch.cuda.empty_cache()
    if compiled and name == "resnet20":
        times_of: dict[str, float] = {}
        for title, iterate in rivals(name, shape, classes, workers, batch):
            times_of[title] = median(timed(iterate, 10, 3))
            torch.cuda.empty_cache()
        best = min(times_of.values())
        found |= {"rivals_ms": times_of, "over_best_rival": best / found["ms"]}
    return found


def rows(compiled: bool) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """What is measured, by title."""
    import gpu_texts

    for title, name, shape, classes, workers, batch in ROWS:
        also = compiled and workers == 128
        yield title, partial(measure, name, shape, classes, workers, batch, also)
    for title, row in gpu_texts.ROWS.items():
        yield title, partial(gpu_texts.measure, row)


def slower(title: str, ms: float | None) -> str:
    """What to say of a row that takes longer than it is known to."""
    with (RESULTS / "measured.csv").open(encoding="utf-8") as file:
        known = [row for row in csv.DictReader(file) if (row["work"], row["unit"]) == (title, "ms")]
    best = min((float(row["ours"]) for row in known), default=None)
    if ms is None or best is None or ms <= 1.05 * best:
        return ""
    return f"SLOWER: {title} took {best:g} ms before, {ms / best:.2f} times as long now"


def main() -> None:
    """Run all rows; print them and write them to gpu.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument(
        "--skip-compile", action="store_true", help="leave out the rivals but the loop"
    )
    parser.add_argument("--only", default="", help="rows with one of these words")
    arguments = parser.parse_args()
    words = arguments.only.split(",")
    cnn = partavg.Layout.of(dict(MODELS["cnn"]((1, 28, 28), 62).named_parameters()))
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "matrix_tflops": matrix_rate(),
        "averaging": averaging(cnn, by_channel(cnn, 8), 128),  # LEAF's
    }
    print(json.dumps(found), flush=True)
    for title, measured in rows(compiled=not arguments.skip_compile):
        if not any(word in title for word in words):
            continue
        try:
            found[title] = measured()
        except RuntimeError as error:  # the other rows are still worth having
            found[title] = {"error": str(error).splitlines()[0]}
        print(title, json.dumps(found[title]), flush=True)
        if warning := slower(title, found[title].get("ms")):
            print(warning, flush=True)
        (arguments.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
