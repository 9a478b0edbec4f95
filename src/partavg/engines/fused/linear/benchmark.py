"""Linear layers against one worker after another."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from partavg.engines.fused.comparison import Comparison, Setting, main, rows_of
from partavg.engines.fused.linear import operation, reference

LAYERS = ((64, 10), (3136, 512))
"""Inputs and outputs."""


def comparisons(setting: Setting) -> Iterator[Comparison]:
    """One for each layer."""
    for inputs, outputs in LAYERS:
        yield Comparison(
            f"{inputs} to {outputs}",
            partial(_operation, setting),
            reference.linear,
            (
                setting.activations(inputs),
                setting.parameters(outputs, inputs, scale=inputs**-0.5),
                setting.parameters(outputs),
            ),
        )


def _operation(setting: Setting, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return operation.run(None, rows_of(setting, weight=weight, bias=bias), "", x)


if __name__ == "__main__":
    main(comparisons)
