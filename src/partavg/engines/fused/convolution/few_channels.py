"""Convolutions with few channels, and BatchNorm right before them, as one step of a pass."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from partavg.engines.fused import dispatch
from partavg.engines.fused.channels import channels_first, channels_last
from partavg.engines.fused.convolution import few_channels_cuda as kernels
from partavg.engines.fused.convolution.any_channels import four_channels
from partavg.engines.fused.convolution.few_channels_cuda import NormAfter, NormBefore
from partavg.engines.fused.convolution.tiling import Tiling
from partavg.engines.fused.norm.batch_norm import (
    Normalized,
    NormSettings,
    Statistics,
    felt,
    gradient,
    measure,
    normalize,
)
from partavg.engines.fused.rows import NOWHERE, Places
from partavg.kernels.streams import on_side_stream, wait_for_side_stream

Found = tuple[Tensor, Tensor | None, Tensor, int]
"""Outputs; inputs, if others use them; the outputs' statistics: partials and pixels."""
OutputsAndStatistics = tuple[Tensor, Tensor | None, Statistics]
"""Outputs; inputs, if others use them; the outputs' statistics."""


class PendingNorm(NamedTuple):
    """What a BatchNorm layer, an addition and a ReLU are to make of x before it is convolved."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    residual: Tensor | None
    settings: NormSettings
    statistics: Statistics | None
    alone: bool
    """Whether nothing but the convolution needs what comes out."""


def few_channels(
    x: Tensor, weight: Tensor, own: Tiling, places: Places = NOWHERE
) -> OutputsAndStatistics:
    """Convolve x [m, n, c, h, w]."""
    y, inputs, *found = FewChannels.apply(x, weight, own, places)  # type: ignore[no-untyped-call]
    return y, inputs, Statistics(*found)


def norm_then_few_channels(
    pending: PendingNorm, weight: Tensor, own: Tiling, places: Places = NOWHERE
) -> OutputsAndStatistics:
    """Convolve what a BatchNorm makes of its x."""
    deferred: list[NormAfter] | None = [] if dispatch.both_gradients_at_once(own) else None
    y, inputs, partials, pixels = NormThenFewChannels.apply(  # type: ignore[no-untyped-call]
        *pending, weight, own, deferred, places
    )
    return y, inputs, Statistics(partials, pixels, deferred)


class FewChannels(torch.autograd.Function):
    """conv2d on [m, n, c, h, w]; gradients of others that use its input are added on the way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, own: Tiling, places: Places) -> Found:
        ctx.set_materialize_grads(False)
        image = own.GIVEN < own.C
        rows = four_channels(x) if image else channels_last(x)
        ahead, back = kernels.pack_weights(weight, own)
        y, partials, pixels = kernels.convolve(rows, ahead, own)
        ctx.own, ctx.places = own, places
        ctx.save_for_backward(rows, back)
        ctx.mark_non_differentiable(partials)
        return channels_first(y), x if image else channels_first(rows), partials, pixels

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, added: Tensor | None, *none: Any) -> Any:
        if grad is None:
            return added, None, None, None
        x, back = ctx.saved_tensors
        grad = channels_last(grad)
        room = kernels.Room.of(x, ctx.own, ctx.places)
        with on_side_stream(grad, x, room.of_weight):
            dweight = kernels.weight_gradient(x, grad, ctx.own, room)
        dx = None
        if ctx.needs_input_grad[0]:
            other = None if added is None else channels_last(added)
            dx = channels_first(kernels.input_gradient(grad, back, ctx.own, other, None)[0])
        return dx, dweight, None, None


class NormThenFewChannels(torch.autograd.Function):
    """conv2d of relu(norm(x) + residual); the latter is returned as well, as by `FewChannels`.

    The gradient goes back through the ReLU, and what the norm needs of it is added up, where the
    convolution's input gradient is written. Where x comes from a convolution that can do so, the
    norm's gradient is deferred to it, with `through` in its place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        residual: Tensor | None,
        settings: NormSettings,
        statistics: Statistics | None,
        alone: bool,
        weight: Tensor,
        own: Tiling,
        deferred: list[NormAfter] | None,
        places: Places,
    ) -> Found:
        ctx.set_materialize_grads(False)
        ctx.deferred_here = deferred
        ctx.defer_to = None if statistics is None else statistics.deferred
        x = channels_last(x)
        other = None if residual is None else channels_last(residual)
        with on_side_stream(weight):
            ahead, back = kernels.pack_weights(weight, own)
        statistics = statistics or measure(x)
        on_the_way = alone and other is None and deferred is not None
        z = None if on_the_way else torch.empty_like(x)
        mean, rstd = normalize(x, statistics, norm_weight, norm_bias, other, settings, z)
        wait_for_side_stream(x.device)
        if z is None:
            norm = mean, rstd, norm_weight, norm_bias
            before = NormBefore(x, None, *norm, added=False, relu=settings.relu)
            y, partials, pixels = kernels.convolve(x, ahead, own, before)
        else:
            y, partials, pixels = kernels.convolve(z, ahead, own)
        ctx.own, ctx.shape, ctx.affine = own, y.shape, (norm_weight, norm_bias)
        ctx.statistics, ctx.settings = statistics, settings
        ctx.added, ctx.places = residual is not None, places
        ctx.save_for_backward(x, z, mean, rstd, back)
        ctx.mark_non_differentiable(partials)
        inputs = None if z is None else channels_first(z)
        return channels_first(y), inputs, partials, pixels

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, added: Tensor | None, *none: Any) -> Any:
        x, z, mean, rstd, back = ctx.saved_tensors
        grad = x.new_zeros(ctx.shape) if grad is None else channels_last(grad)
        other = None if added is None else channels_last(added)
        weight, bias = ctx.affine
        before = NormBefore(x, z, mean, rstd, weight, bias, ctx.added, ctx.settings.relu)
        room = kernels.Room.of(x, ctx.own, ctx.places)
        fixed = ctx.settings.fixed
        summed = fixed or ctx.defer_to is not None  # no kernel of the norm's own adds it up
        affine: tuple[Tensor | None, ...] = room.norm
        if ctx.deferred_here:
            through, sums = kernels.both_gradients(
                grad, ctx.deferred_here.pop(), back, ctx.own, other, before, room, affine=summed
            )
        else:
            if z is None:
                z = torch.empty_like(x)
                again = ctx.settings._replace(running=None, momentum=0.0)
                normalize(x, ctx.statistics, weight, bias, None, again, z)
                before = before._replace(z=z)
            with on_side_stream(grad, z, room.of_weight):
                kernels.weight_gradient(z, grad, ctx.own, room)
            through, sums = kernels.input_gradient(
                grad, back, ctx.own, other, before, room if summed else None
            )
        own_sums = felt(sums) if fixed else sums
        if ctx.defer_to is not None:
            ctx.defer_to.append(NormAfter(x, own_sums, mean, rstd, weight))
            dx = through
        else:
            norm = Normalized(x, None, mean, rstd, weight, bias, added=False, relu=False)
            into = None if summed else room.norm
            dx, _, *found = gradient(norm, through, own_sums, into=into)
            affine = affine if summed else tuple(found)
        grown = channels_first(through) if ctx.added else None
        return channels_first(dx), *affine, grown, *[None] * 3, room.weight, None, None, None
