"""LSTM layers against torch's own, one worker after another."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

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
STEPS = 12


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
    outputs, (hidden, cell) = lstm(layer, [weight.to(x.dtype) for weight in weights], x, None)
    found: Tensor = outputs + (hidden * cell).mean()
    return found


if __name__ == "__main__":
    main(comparisons)
