"""Attention against one worker after another."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from partavg.engines.fused.attention import operation, reference
from partavg.engines.fused.comparison import Comparison, Setting, main, rows_of

LAYERS = ((4, 32, 16, True), (2, 10, 8, False))
"""Heads, tokens, width of a head, and whether tokens see but those before them."""


def comparisons(setting: Setting) -> Iterator[Comparison]:
    """One for each layer."""
    for heads, tokens, width, causal in LAYERS:
        yield Comparison(
            f"{heads} heads, {tokens} tokens, {width} wide{', causal' if causal else ''}",
            partial(_operation, setting, causal),
            partial(reference.attend, causal=causal),
            tuple(setting.activations(heads, tokens, width) for _ in range(3)),
        )


def _operation(setting: Setting, causal: bool, *given: Tensor) -> Tensor:
    query, key, value = given
    return operation.run(None, rows_of(setting), "", query, key, value, is_causal=causal)


if __name__ == "__main__":
    main(comparisons)
