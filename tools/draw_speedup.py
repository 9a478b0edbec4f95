"""Draw the picture of docs/theory.md: the linear speed-up in the number of workers.

python tools/draw_speedup.py

A quadratic ½ xᵀ diag(λ) x with noisy gradients, K steps, η = √(m/K) times a constant: the mean of
‖∇F(u_k)‖² is measured over RUNS runs, and Theorem 1 is computed from the same constants.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from partavg import SGD, Layout, Partition, Schedule, Span
from partavg.core import Batch, Gradients, Plan, Workers, train
from partavg.report.chart import Line, chart
from partavg.theory import Constants, Theorem1

TARGET = Path(__file__).parent.parent / "docs/images/speedup.svg"
WORKERS = (1, 2, 4, 8, 16, 32, 64)
INTERVAL, STEPS, RUNS, NOISE = 8, 4096, 8, 2.0
CURVATURE = torch.linspace(0.2, 1, 8, dtype=torch.float64)
STYLE = """
svg { font-family: system-ui, sans-serif; } text { fill: #6e7781; font-size: 13px; }
.grid { stroke: #8c959f; stroke-opacity: .35; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.c0 { stroke: #d4670f; stroke-width: 5; stroke-opacity: .5; } .c1 { stroke: #1f7ae0; }
.c2 { stroke: #8c959f; } .c3 { stroke: #8c959f; stroke-dasharray: 5 5; }
.head { font-size: 16px; font-weight: 600; }
"""
LEGEND = {
    "c2": "bound of Theorem 1",
    "c0": "periodic, measured",
    "c1": "partial, measured",
    "c3": "1/√m",
}


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
    nothing = Batch(*[torch.zeros(workers, 1)] * 2, torch.zeros(workers, dtype=torch.long))
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


def main() -> None:
    """Measure, and write the picture."""
    periodic, partial = (
        [measured(schedule, workers) for workers in WORKERS]
        for schedule in (Schedule.periodic(INTERVAL), Schedule.partial(INTERVAL))
    )
    values = {
        "c2": [bound(workers) for workers in WORKERS],
        "c0": periodic,
        "c1": partial,
        "c3": [0.8 * partial[0] / math.sqrt(workers) for workers in WORKERS],
    }
    for style, row in values.items():
        print(f"{LEGEND[style]:20}", *(f"{value:9.5f}" for value in row))
    lines = [
        Line(
            LEGEND[style],
            f"line {style}",
            [(math.log2(m), math.log10(value)) for m, value in zip(WORKERS, row, strict=True)],
        )
        for style, row in values.items()
    ]
    title = f"Mean of ‖∇F(u_k)‖² over {STEPS} steps, log₁₀"
    parts = [
        f'<text class="head" x="56" y="20">{title}</text>',
        '<svg x="0" y="32" width="640" height="300">',
        chart(title, "log₂ of the number of workers", lines) + "</svg>",
    ]
    for place, (style, label) in enumerate(LEGEND.items()):
        left = 40 + (0, 175, 340, 495)[place]
        parts.append(f'<path class="line {style}" d="M{left} 352h24"/>')
        parts.append(f'<text x="{left + 30}" y="356">{label}</text>')
    TARGET.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 368">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    main()
