"""Rotary positions against one worker after another."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from partavg.engines.fused.comparison import Comparison, Setting, main, rows_of
from partavg.engines.fused.rotary import operation, reference
from partavg.models.gpt import angles, rotated

LAYERS = ((4, 32, 16), (3, 10, 12))
"""Heads, tokens, and width of a head."""


def comparisons(setting: Setting) -> Iterator[Comparison]:
    """One for each layer, on heads that lie apart, as products leave them."""
    for heads, tokens, width in LAYERS:
        x = setting.activations(tokens, 3 * heads * width)
        cos, sin = angles(tokens, width, x)
        yield Comparison(
            f"{heads} heads, {tokens} tokens, {width} wide",
            partial(_operation, setting, heads, (cos, sin)),
            partial(_reference, heads, (cos, sin)),
            (x,),
        )


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], 3, heads, -1).transpose(2, 4)[:, :, :, 1]


def _operation(setting: Setting, heads: int, turns: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    rows = rows_of(setting)
    return operation.run(rotated, rows, "", _heads(x, heads), rows.for_all(turns))


def _reference(heads: int, turns: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    return reference.rotate(_heads(x, heads), *turns)


if __name__ == "__main__":
    main(comparisons)
