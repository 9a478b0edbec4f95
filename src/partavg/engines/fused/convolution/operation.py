"""nn.Conv2d for all workers at once, alone or right after a BatchNorm."""

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from partavg.engines.fused import dispatch
from partavg.engines.fused.convolution import reference
from partavg.engines.fused.convolution.case import Case, Window
from partavg.engines.fused.convolution.squares_cuda import Squares
from partavg.engines.fused.convolution.tiling import Tiling, tiling_of
from partavg.engines.fused.dispatch import Convolution, device_of
from partavg.engines.fused.norm.parameters import NormParameters
from partavg.engines.fused.rows import NOWHERE, Places, Rows

if TYPE_CHECKING:
    from partavg.engines.fused.norm.batch_norm import Statistics


class Convolved(NamedTuple):
    """Outputs, and inputs for their other users: so gradients are added up without a pass."""

    y: Tensor
    x: Tensor | None
    statistics: "Statistics | None" = None
    """Of the outputs, where they cost nothing."""
    summed: bool = False
    """Whether what was to be added to the outputs is."""


def covers(layer: Any) -> bool:
    """Whether images are padded with zeros, by numbers."""
    return bool(layer.padding_mode == "zeros" and layer.padding != "same")


def run(layer: Any, rows: Rows, name: str, x: Tensor, *, added: Tensor | None = None) -> Convolved:
    """The layer's outputs for x [m, n, c, h, w], with something added where a kernel does."""
    weight, bias = rows.tensor_of(name, "weight"), rows.maybe(name, "bias")
    return convolve(x, weight, bias, Window.of(layer), rows.places(name), added)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Window,
    places: Places = NOWHERE,
    added: Tensor | None = None,
) -> Convolved:
    """Convolve x [m, n, c, h, w] with the weights [m, k, c / groups, r, s] of each worker."""
    case = Case.of(x, weight, bias, window, gradient=x.requires_grad)
    way = dispatch.convolution(case, device_of(x))
    both: tuple[Any, ...]
    if way == Convolution.FEW_CHANNELS:
        from partavg.engines.fused.convolution.few_channels import few_channels

        both = few_channels(x, weight, _tiling(case), places)
    elif way == Convolution.SQUARES:
        return _in_squares(x, weight, case, added)
    elif way == Convolution.MANY_CHANNELS:
        from partavg.engines.fused.convolution.many_channels import ManyChannels

        both = ManyChannels.apply(x, weight, bias, window.rim)  # type: ignore[no-untyped-call]
    elif way == Convolution.ONE_WORKER_AT_A_TIME:
        from partavg.engines.fused.convolution.one_worker import OneWorkerAtATime

        given = x, weight, bias, window.stride[0], window.rim
        both = OneWorkerAtATime.apply(*given)  # type: ignore[no-untyped-call]
    elif way == Convolution.ANY_CHANNELS:
        from partavg.engines.fused.convolution.any_channels import AnyChannels

        given = x, weight, bias, window.stride[0], window.rim
        both = AnyChannels.apply(*given)  # type: ignore[no-untyped-call]
    else:
        both = reference.convolve(x, weight, bias, window), x
    return Convolved(*both)


def _in_squares(x: Tensor, weight: Tensor, case: Case, added: Tensor | None) -> Convolved:
    from partavg.engines.fused.convolution.squares import InSquares

    own = Squares.of(case)
    assert own is not None  # dispatch has seen it
    fits = added is not None and (added.shape, added.dtype) == (own.outputs(x), x.dtype)
    given = x, weight, own, added if fits else None
    y, inputs = InSquares.apply(*given)  # type: ignore[no-untyped-call]
    return Convolved(y, inputs, summed=fits)


def norm_then_convolve(
    norm: Any,
    parameters: NormParameters,
    layer: Any,
    weight: Tensor,
    x: Tensor,
    residual: Tensor | None,
    *,
    relu: bool,
    statistics: "Statistics | None",
    alone: bool,
    places: Places,
) -> Convolved | None:
    """A BatchNorm layer, and a convolution of what it gives, as one step; None if they are two.

    `alone` is whether nothing but the convolution uses what the BatchNorm gives. `Convolved.x` is
    that; None where it was never written to memory.
    """
    case = Case.of(x, weight, layer.bias, Window.of(layer), gradient=True)
    broadcasts = residual is not None and residual.shape != x.shape
    if not dispatch.fuses_norm(norm, case, device_of(x), broadcasts=broadcasts):
        return None
    from partavg.engines.fused.convolution.few_channels import PendingNorm, norm_then_few_channels
    from partavg.engines.fused.norm.batch_norm import NormSettings, Statistics

    gamma, beta = parameters.weight, parameters.bias
    assert gamma is not None
    assert beta is not None
    running, fixed = parameters.running, not norm.training
    if fixed:
        assert running is not None  # dispatch has seen them
        deferred = None if statistics is None else statistics.deferred
        statistics = Statistics.fixed(running, x[0, :, 0].numel(), deferred)
    settings = NormSettings(None if fixed else running, norm.eps, norm.momentum or 0, relu, fixed)
    pending = PendingNorm(x, gamma, beta, residual, settings, statistics, alone)
    return Convolved(*norm_then_few_channels(pending, weight, _tiling(case), places))


def _tiling(case: Case) -> Tiling:
    found = tiling_of(case)
    assert found is not None  # dispatch has seen it
    return found
