"""Draw the linear speed-up in the number of workers, docs/images/speedup.svg of docs/theory.md.

    python tools/draw_speedup.py

A quadratic ½ xᵀ diag(λ) x with noisy gradients, K steps, η = √(m/K) times a constant: the mean of
‖∇F(u_k)‖² is measured over RUNS runs, and Theorem 1 is computed from the same constants.
"""

import math
from collections.abc import Iterator

import torch
from picture import IMAGES, WIDTH, chart, legend, picture
from torch import Tensor

from partavg import SGD, Layout, Partition, Schedule, Span
from partavg.core import Batch, Gradients, Plan, Workers, train
from partavg.theory import Constants, Theorem1

WORKERS = (1, 2, 4, 8, 16, 32, 64)
INTERVAL, STEPS, RUNS, NOISE = 8, 4096, 8, 2.0
CURVATURE = torch.linspace(0.2, 1, 8, dtype=torch.float64)
LABELS = {2: "bound of Theorem 1", 0: "periodic, measured", 1: "partial, measured", 3: "1/√m"}
STYLE = """
.c0 { stroke-width: 5; stroke-opacity: .5; }
.c3 { stroke: #8c959f; stroke-dasharray: 5 5; }
"""


def rate(workers: int) -> float:
    """√(m/K) times a constant: half of what the theorem allows to the most workers."""
    return 0.5 / INTERVAL * math.sqrt(workers / WORKERS[-1])


def measured(schedule: Schedule, workers: int) -> float:
    """The mean of ‖∇F(u_k)‖² over steps and runs; the columns of a coordinate lie together."""
    generator = torch.Generator().manual_seed(workers)
    curvature = CURVATURE.repeat_interleave(RUNS)
    norms = []

    def engine(params: Tensor, buffers: Tensor, batch: Batch) -> Iterator[Gradients]:
        norms.append(float((curvature * params.mean(0)).square().sum()) / RUNS)
        noise = torch.randn(params.shape, generator=generator, dtype=params.dtype)
        grads = curvature * params + NOISE * noise
        yield Gradients(slice(0, workers), params[:, 0], [(slice(0, None), grads)])

    start = torch.ones(workers, len(curvature), dtype=torch.float64)
    layout = Layout(("x",), ((len(curvature),),))
    width = len(curvature) // schedule.parts
    spans = tuple((Span(width * part, width * (part + 1)),) for part in range(schedule.parts))
    zeros = torch.zeros(workers, 1)
    nothing = Batch(zeros, zeros, torch.zeros(workers, dtype=torch.long))
    weights = torch.full((workers,), 1 / workers, dtype=torch.float64)
    for _ in train(
        Workers.start(start, start.new_empty(workers, 0), layout, SGD(), schedule.parts),
        engine,
        lambda step: nothing,
        plan=Plan(schedule, Partition(len(curvature), spans), ((),) * schedule.parts, weights),
        solver=SGD(),
        lr=lambda step: rate(workers),
        until=STEPS,
    ):
        pass
    return sum(norms) / STEPS


def bound(workers: int) -> float:
    """The right-hand side of Theorem 1; every coordinate is a part."""
    constants = Constants(
        smoothness=tuple(CURVATURE.tolist()),
        variance=(NOISE**2,) * len(CURVATURE),
        gap=float(CURVATURE.sum()) / 2,
    )
    found = Theorem1(workers).bound(constants, lr=rate(workers), interval=INTERVAL, steps=STEPS)
    assert found.holds
    return found.total


def values() -> dict[int, list[float]]:
    """What each line shows, for every number of workers."""
    periodic, partial = (
        [measured(schedule, workers) for workers in WORKERS]
        for schedule in (Schedule.periodic(INTERVAL), Schedule.partial(INTERVAL))
    )
    return {
        2: [bound(workers) for workers in WORKERS],
        0: periodic,
        1: partial,
        3: [0.8 * partial[0] / math.sqrt(workers) for workers in WORKERS],
    }


def draw(found: dict[int, list[float]]) -> str:
    """All lines, with logarithms on both axes."""
    lines = [
        (color, [(math.log2(m), math.log10(y)) for m, y in zip(WORKERS, row, strict=True)])
        for color, row in found.items()
    ]
    title = f"Mean of ‖∇F(u_k)‖² over {STEPS} steps, log₁₀"
    parts = chart(0, title, "log₂ of the number of workers", lines)
    return picture(WIDTH, 368, parts + legend(LABELS, (40, 215, 380, 535)), STYLE)


def main() -> None:
    """Measure, print, and write the picture."""
    found = values()
    for color, row in found.items():
        print(f"{LABELS[color]:20}", *(f"{value:9.5f}" for value in row))
    (IMAGES / "speedup.svg").write_text(draw(found))


if __name__ == "__main__":
    main()
