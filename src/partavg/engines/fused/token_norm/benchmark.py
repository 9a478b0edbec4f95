"""LayerNorm and RMSNorm, with an addition before them, against plain torch."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from partavg.engines.fused.comparison import Comparison, Setting, main
from partavg.engines.fused.token_norm import operation, reference

LAYERS = ((384, True, True, False), (384, False, False, True), (100, True, False, False))
"""Width, whether something is added, whether there is a bias, and whether it is RMSNorm."""
STEPS = 16


def comparisons(setting: Setting) -> Iterator[Comparison]:
    """One for each layer."""
    for width, adds, biased, rms in LAYERS:
        given = {
            "x": setting.activations(STEPS, width),
            **({"added": setting.activations(STEPS, width)} if adds else {}),
            "weight": setting.parameters(width),
            **({"bias": setting.parameters(width)} if biased else {}),
        }
        yield Comparison(
            f"{'RMSNorm' if rms else 'LayerNorm'}, {width} wide{', added' if adds else ''}",
            partial(_operation, tuple(given), rms),
            partial(_reference, tuple(given), rms),
            tuple(given.values()),
        )


def _operation(names: tuple[str, ...], rms: bool, *given: Tensor) -> Tensor:
    x, added, weight, bias = _all_of(names, given)
    assert x is not None
    return torch.stack(operation.normalize(x, added, weight, bias, 1, 1e-5, rms))


def _reference(names: tuple[str, ...], rms: bool, *given: Tensor) -> Tensor:
    x, added, weight, bias = _all_of(names, given)
    assert x is not None
    total = x if added is None else x + added
    return torch.stack([total, reference.normalize(total, weight, bias, 1, 1e-5, rms)])


def _all_of(names: tuple[str, ...], given: tuple[Tensor, ...]) -> list[Tensor | None]:
    """Whatever was not given is None."""
    known = dict(zip(names, given, strict=True))
    return [known.get(name) for name in ("x", "added", "weight", "bias")]


if __name__ == "__main__":
    main(comparisons)
