"""BatchNorm and GroupNorm, each with an addition and ReLU, against plain torch."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from partavg.engines.fused import dispatch
from partavg.engines.fused.comparison import Comparison, Setting, main
from partavg.engines.fused.dispatch import device_of
from partavg.engines.fused.norm import operation, reference
from partavg.engines.fused.norm.parameters import NormParameters

LAYERS = ((16, 32, False), (16, 32, True), (64, 8, True), (160, 16, False))
"""Channels, size, and whether something is added."""
GROUPS = ((16, 8), (16, 1), (16, 16), (64, 8), (160, 8), (160, 1))
"""Channels, as above, and groups."""


def comparisons(setting: Setting) -> Iterator[Comparison]:
    """One for each layer."""
    for channels, size, adds in LAYERS:
        x = setting.activations(channels, size, size)
        affine = setting.parameters(channels), setting.parameters(channels)
        added = (setting.activations(channels, size, size),) if adds else ()
        title = f"{channels} channels, {size} x {size}{', added' if adds else ''}"
        yield Comparison(
            f"{title}, {dispatch.norm(x.dtype, 0.1, device_of(x))}",
            partial(_normalize, lambda *given: operation.batch_norm(*given).y),
            partial(_normalize, reference.batch_norm),
            (x, *affine, *added),
        )
        for groups in (groups for of, groups in GROUPS if of == channels):
            way = dispatch.group_norm(channels // groups, x.dtype, device_of(x))
            yield Comparison(
                f"{title}, {groups} groups, {way}",
                partial(_normalize_groups, operation.group_norm, groups),
                partial(_normalize_groups, reference.group_norm, groups),
                (x, *affine, *added),
            )


def _normalize(
    norm: Callable[..., Any],
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
) -> Tensor:
    running = torch.zeros_like(weight), torch.ones_like(weight)
    found: Tensor = norm(x, NormParameters(weight, bias, *running), 1e-5, 0.1, residual, True)
    return found


def _normalize_groups(
    norm: Callable[..., Any],
    groups: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
) -> Tensor:
    found: Tensor = norm(x, weight, bias, groups, 1e-5, residual, True)
    return found


if __name__ == "__main__":
    main(comparisons)
