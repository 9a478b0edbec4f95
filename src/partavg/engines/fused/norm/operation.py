"""BatchNorm and GroupNorm for all workers at once, with the addition and the ReLU after them."""

from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from partavg.engines.fused import dispatch
from partavg.engines.fused.dispatch import Norm, device_of
from partavg.engines.fused.norm import reference
from partavg.engines.fused.norm.parameters import NormParameters
from partavg.engines.fused.rows import Rows

if TYPE_CHECKING:
    from partavg.engines.fused.norm.batch_norm import Statistics


class Normed(NamedTuple):
    """Outputs, and inputs for their other users: so gradients are added up without a pass."""

    y: Tensor
    x: Tensor


def run(
    layer: Any,
    rows: Rows,
    name: str,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    relu: bool = False,
    statistics: "Statistics | None" = None,
) -> Normed:
    """The layer's outputs for x [m, n, c, …]; updates the running statistics in place.

    The number of batches is left to the engine, which counts for all layers at once. `statistics`
    are those of x, where the layer before it took them.
    """
    if _differs(residual, x):
        y, x = run(layer, rows, name, x, statistics=statistics)
        return Normed(_added(y, residual, relu), x)
    own = NormParameters.of(rows, name)
    if not layer.training and own.running is not None:
        return by_fixed_statistics(x, own, layer.eps, residual, relu)
    into = rows.norm_places(name)
    momentum = layer.momentum
    if momentum is None:  # a cumulative mean
        batches = rows.maybe(name, "num_batches_tracked")
        momentum = None if batches is None else 1 / (batches + 1).unsqueeze(1)
    return batch_norm(x, own, layer.eps, momentum, residual, relu, statistics, into)


def by_fixed_statistics(
    x: Tensor, own: NormParameters, eps: float, residual: Tensor | None, relu: bool
) -> Normed:
    """Normalize x [m, n, c, …] by the running statistics, which stay as they are."""
    assert own.running is not None
    if dispatch.norm(x.dtype, 0.0, device_of(x)) == Norm.TORCH:
        given = own.weight, own.bias, *own.running, eps, residual, relu
        return Normed(reference.normalize(x, *given), x)
    from partavg.engines.fused.norm.batch_norm import BatchNorm, NormSettings, Statistics

    settings = NormSettings(None, eps, 0.0, relu, fixed=True)
    fixed = Statistics.fixed(own.running, x[0, :, 0].numel())
    both = BatchNorm.apply(  # type: ignore[no-untyped-call]
        x, own.weight, own.bias, residual, settings, fixed, None
    )
    return Normed(*both)


def batch_norm(
    x: Tensor,
    own: NormParameters,
    eps: float,
    momentum: float | Tensor | None,
    residual: Tensor | None,
    relu: bool,
    statistics: "Statistics | None" = None,
    into: tuple[Tensor, Tensor] | None = None,
) -> Normed:
    """Normalize x [m, n, c, …] by the statistics of each worker's batch; update the running ones.

    `momentum` is the weight of this batch in them, for all workers or [m, 1]. The gradients of
    weight and bias may be written `into` a place.
    """
    if dispatch.norm(x.dtype, momentum, device_of(x)) == Norm.TORCH:
        return Normed(reference.batch_norm(x, own, eps, momentum, residual, relu), x)
    from partavg.engines.fused.norm.batch_norm import BatchNorm, NormSettings

    running = None if momentum is None else own.running
    assert not isinstance(momentum, Tensor)  # dispatch has seen it
    settings = NormSettings(running, eps, momentum or 0.0, relu)
    both = BatchNorm.apply(  # type: ignore[no-untyped-call]
        x, own.weight, own.bias, residual, settings, statistics, into
    )
    return Normed(*both)


def run_groups(
    layer: Any,
    rows: Rows,
    name: str,
    x: Tensor,
    residual: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """A GroupNorm layer's outputs for x [m, n, c, …]."""
    if _differs(residual, x):
        return _added(run_groups(layer, rows, name, x), residual, relu)
    affine = rows.maybe(name, "weight"), rows.maybe(name, "bias")
    into = rows.norm_places(name)
    return group_norm(x, *affine, layer.num_groups, layer.eps, residual, relu, into)


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    residual: Tensor | None,
    relu: bool,
    into: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Normalize x [m, n, c, …] by the statistics of groups of each sample's channels; add; ReLU.

    Weights and biases are [m, c]; their gradients may be written `into` a place.
    """
    if dispatch.group_norm(x.shape[2] // groups, x.dtype, device_of(x)) == Norm.TORCH:
        return reference.group_norm(x, weight, bias, groups, eps, residual, relu)
    from partavg.engines.fused.norm.group_norm import GroupNorm, GroupSettings

    settings = GroupSettings(groups, eps, relu)
    y: Tensor = GroupNorm.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, residual, settings, into
    )
    return y


def _differs(residual: Tensor | None, x: Tensor) -> TypeGuard[Tensor]:
    """Whether what is added has another shape or type."""
    return residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype)


def _added(y: Tensor, residual: Tensor, relu: bool) -> Tensor:
    """A sum as torch computes it for one worker, shorter shapes spread from the right; ReLU."""
    y = torch.func.vmap(torch.add)(y, residual)
    return y.relu() if relu else y
