"""LSTM layers against torch's own, worker by worker; on a GPU, how fast weights are read."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from partavg.engines.fused.comparison import Comparison, Setting, main
from partavg.engines.fused.recurrent import operation, reference

LAYERS = (
    (32, {"batch_first": True}),
    (64, {"bidirectional": True, "batch_first": True}),
    (32, {"num_layers": 2, "bias": False, "batch_first": True}),
    (20, {"num_layers": 2, "bidirectional": True}),
)
"""Width of inputs and states, and options."""
STEPS = 17


def comparisons(setting: Setting) -> Iterator[Comparison]:
    """One for each layer."""
    for width, options in LAYERS:
        layer = nn.LSTM(width, width, **options)
        shapes = [getattr(layer, name).shape for name in operation.weight_names(layer)]
        weights = (setting.parameters(*shape, scale=width**-0.5) for shape in shapes)
        texts = ", ".join(key for key in options if key != "batch_first")
        yield Comparison(
            f"{width} wide, {STEPS} steps{', ' + texts if texts else ''}",
            partial(_read, operation.lstm, layer),
            partial(_read, reference.lstm, layer),
            (setting.activations(STEPS, width), *weights),
        )


def _read(lstm: Callable[..., Any], layer: nn.LSTM, x: Tensor, *weights: Tensor) -> Tensor:
    outputs, (hidden, cell) = lstm(layer, weights, x, None)
    found: Tensor = outputs + (hidden * cell).mean()
    return found


def speeds(workers: int, samples: int = 10, length: int = 200, width: int = 256) -> Iterator[str]:
    """What the layer of models/lstm.py takes as CUDA graphs, and its steps without the inputs."""
    setting = Setting(torch.device("cuda"), torch.bfloat16, workers, samples)
    layer = nn.LSTM(width, width, bidirectional=True, batch_first=True)
    shapes = [getattr(layer, name).shape for name in operation.weight_names(layer)]
    weights = [setting.parameters(*shape, scale=width**-0.5) for shape in shapes]
    x, given = setting.activations(length, width), setting.activations(length, 8 * width)
    states = torch.zeros(workers, 2, samples, width, device="cuda", dtype=setting.dtype)
    bias = torch.cat([weights[2], weights[6]], 1).detach().requires_grad_()

    def whole() -> Tensor:
        found: Tensor = operation.lstm(layer, weights, x, None)[1][0]
        return found

    def alone() -> Tensor:
        from partavg.engines.fused.recurrent.steps import Steps

        recurrent = weights[1], weights[5]
        found: Tensor = Steps.apply(  # type: ignore[no-untyped-call]
            given, bias, states, states, True, *recurrent
        )[1]
        return found

    read = 2 * (weights[1].numel() + weights[5].numel()) * length  # bytes, each way
    for title, call, leaves in (
        ("a layer", whole, [x, *weights]),
        ("its steps, sums of gradients among them", alone, [given, bias, weights[1], weights[5]]),
    ):
        forward = _milliseconds(call)
        back = _milliseconds(partial(_differentiate, call, leaves)) - forward
        yield f"{workers} workers, {title}: " + "; ".join(
            f"{way} {ms:.2f} ms, {1e3 * ms / length:.1f} us a step, {read / ms / 1e9:.2f} TB/s"
            for way, ms in (("forward", forward), ("backward", back))
        )


def _differentiate(call: Callable[[], Tensor], leaves: list[Tensor]) -> tuple[Tensor, ...]:
    y = call()
    return torch.autograd.grad(y, leaves, torch.ones_like(y))


def _milliseconds(call: Callable[[], object], rounds: int = 10) -> float:
    """Of one of many replays."""
    call()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()
    ends: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
    graph.replay()
    ends[0].record()
    for _ in range(rounds):
        graph.replay()
    ends[1].record()
    torch.cuda.synchronize()
    del kept
    return float(ends[0].elapsed_time(ends[1])) / rounds


def report() -> None:
    """Print the speeds beside that of a copy."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * source.numel() / _milliseconds(partial(target.copy_, source)) / 1e9
    print(f"a copy reads and writes {copied:.2f} TB/s")
    for workers in (128, 32):
        for line in speeds(workers):
            print(line, flush=True)


if __name__ == "__main__":
    main(comparisons)
    if torch.cuda.is_available():
        report()
