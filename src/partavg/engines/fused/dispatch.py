"""Which kernel runs: all decisions between the engine's own kernels and torch's, in one place.

Functions of facts alone, the shapes, the numbers' type and what a device can do, so that they can
be tried anywhere. docs/fused-engine.md shows them as a table, which a test compares with them.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.engines.fused.channels import has_channels_last
from partavg.engines.fused.convolution.box import Box, Sizes
from partavg.engines.fused.convolution.case import Case
from partavg.engines.fused.convolution.squares_cuda import Squares
from partavg.engines.fused.convolution.tiling import (
    MOST_SHARED,
    BothGradients,
    Tiling,
    tiling_of,
    transposed,
)
from partavg.kernels.backend import has_warp_groups, like_hopper, uses_triton
from partavg.torch_internals import cuda_compiler

_FEW_WORDS = 128  # on a CPU with 10 a quarter less time, with 256 the same, with 1,000 a tenth more


class Device(NamedTuple):
    """What the device of a tensor can do; nothing of this, on a CPU."""

    triton: bool = False
    """Run Triton's kernels: a GPU, or for tests Triton's interpreter on a CPU."""
    cuda: bool = False
    """It is a GPU."""
    hopper: bool = False
    """It has a copy engine and 227 KiB of shared memory for a block."""
    compiler: bool = False
    """This torch compiles kernels written in CUDA."""
    groups: bool = False
    """It has Hopper's own instructions for groups of four warps."""


def device_of(x: Tensor) -> Device:
    """The facts about a tensor's device."""
    compiler, groups = cuda_compiler() is not None, has_warp_groups(x.device)
    return Device(uses_triton(x), x.is_cuda, like_hopper(x.device), compiler, groups)


class Convolution(StrEnum):
    """The ways to convolve."""

    FEW_CHANNELS = "few channels"
    SQUARES = "squares"
    MANY_CHANNELS = "many channels"
    ONE_WORKER_AT_A_TIME = "one worker at a time"
    ANY_CHANNELS = "any channels"
    GROUPED = "grouped"


def convolution(case: Case, device: Device) -> Convolution:
    """The first way that can do it, in the order above."""
    if _few_channels(case, device):
        return Convolution.FEW_CHANNELS
    if device.triton and device.groups and device.compiler and Squares.of(case):
        return Convolution.SQUARES
    if _many_channels(case, device):
        return Convolution.MANY_CHANNELS
    if not _any_channels(case, device):
        return Convolution.GROUPED
    # Then one worker's convolution is enough work for a GPU.
    large = min(case.outputs, case.inputs) >= 128
    if device.cuda and large and case.images * case.height * case.width >= 2048:
        return Convolution.ONE_WORKER_AT_A_TIME
    return Convolution.ANY_CHANNELS


def _few_channels(case: Case, device: Device) -> bool:
    stride, padding, dilation, groups = case.window
    plain = not case.bias and dilation == (1, 1) and groups == 1
    square = stride[0] == stride[1] and not isinstance(padding, str)
    able = device.triton and device.hopper and device.compiler and case.dtype == torch.bfloat16
    found = tiling_of(case) if plain and square and able else None
    # Images, with up to 4 channels, get no gradient.
    return found is not None and not (case.gradient and found.GIVEN < found.C)


def _many_channels(case: Case, device: Device) -> bool:
    square = case.taps[0] == case.taps[1]
    one_by_one = case.window.stride == case.window.dilation == (1, 1) and case.window.groups == 1
    fewer, more = sorted((case.inputs, case.outputs))
    blocks = fewer % 16 == more % 16 == 0 and fewer >= (16 if more >= 128 else 32)
    able = device.triton and device.hopper and case.dtype == torch.bfloat16
    return able and square and one_by_one and blocks and case.contiguous


def _any_channels(case: Case, device: Device) -> bool:
    stride, _, dilation, groups = case.window
    square = stride[0] == stride[1] and dilation == (1, 1) and groups == 1
    able = device.triton and case.dtype in (torch.bfloat16, torch.float32)
    return able and square and case.outputs % 16 == 0  # input gradients read blocks of 16 outputs


def weight_gradient_of_many_channels(sizes: Sizes) -> Convolution:
    """Whose kernel computes it: the copy engine's must read pixels that lie one after another."""
    gapless = Box.of(sizes).gapless(sizes)
    return Convolution.MANY_CHANNELS if gapless else Convolution.ANY_CHANNELS


def fuses_norm(norm: Any, case: Case, device: Device, *, broadcasts: bool) -> bool:
    """Whether a BatchNorm layer and the convolution after it are one step.

    `broadcasts` is whether what is added in between has another shape.
    """
    known = norm.momentum is not None if norm.training else norm.running_mean is not None
    able = known and norm.weight is not None and not broadcasts
    return able and convolution(case, device) == Convolution.FEW_CHANNELS


def both_gradients_at_once(own: Tiling) -> bool:
    """Whether one kernel computes both gradients of a convolution between two BatchNorms."""
    plain = (own.STRIDE, own.TAPS, own.GIVEN) == (1, 9, own.C)
    back = BothGradients(*transposed(own))
    return plain and max(own.C, own.K) <= 32 and back.cut()["memory"] <= MOST_SHARED


class Norm(StrEnum):
    """The ways to normalize."""

    TRITON = "Triton"
    TORCH = "torch"


def norm(dtype: torch.dtype, momentum: float | Tensor | None, device: Device) -> Norm:
    """BatchNorm; `momentum` is a tensor where workers differ in it: with a cumulative mean."""
    able = device.triton and dtype != torch.float64 and not isinstance(momentum, Tensor)
    return Norm.TRITON if able else Norm.TORCH


def group_norm(channels: int, dtype: torch.dtype, device: Device) -> Norm:
    """GroupNorm, with so many channels in a group: a program holds a pixel of one."""
    able = device.triton and dtype != torch.float64 and channels <= 16384
    return Norm.TRITON if able else Norm.TORCH


class Pool(StrEnum):
    """The ways to pool."""

    MEAN = "mean"
    MAX_BY_TWO = "max by two"
    TORCH = "torch"


def pool(
    by: Any,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: Device,
    args: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> Pool:
    """For activations [m, n, c, …], a layer or function, and what it is called with besides."""
    if isinstance(by, nn.AdaptiveAvgPool2d) and by.output_size in (1, (1, 1)):
        return Pool.MEAN
    if device.triton and dtype != torch.float64 and _halves(by, shape, args, options or {}):
        return Pool.MAX_BY_TWO
    return Pool.TORCH


def _halves(by: Any, shape: Sequence[int], args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether every pixel is in one of the windows of 2 x 2 whose largest value is asked for."""
    if isinstance(by, nn.MaxPool2d):
        given = by.kernel_size, by.stride, by.padding, by.dilation, by.ceil_mode
        return _by_two(shape, *given, by.return_indices)
    return by is F.max_pool2d and _by_two(shape, *args, **options)


def _by_two(
    shape: Sequence[int],
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    """The arguments of torch's function."""
    plain = padding in (0, (0, 0)) and dilation in (1, (1, 1)) and not return_indices
    even = ceil_mode or (shape[-2] % 2 == 0 and shape[-1] % 2 == 0)
    two = kernel_size in (2, (2, 2)) and stride in (None, 2, (2, 2))
    return len(shape) == 5 and plain and even and two


def averages_by_triton(x: Tensor, device: Device) -> bool:
    """Whether a kernel takes the mean of pixels of x [m, n, c, h, w]: channels must lie last.

    A program goes over all pixels of an image: of large ones there may be too few.
    """
    lies = x.ndim == 5 and has_channels_last(x) and x.numel() > 0
    return device.triton and x.dtype != torch.float64 and lies and x[0, 0, 0].numel() <= 1024


def casts_by_triton(weight: Tensor, dtype: torch.dtype, device: Device) -> bool:
    """Whether a kernel converts the weights of a linear layer: each row must lie in one piece."""
    return weight.dtype != dtype and device.triton and weight[0].is_contiguous()


def multiplies_into(dtype: torch.dtype, kept: torch.dtype, device: Device) -> bool:
    """Whether torch's product of numbers of one type writes its sums in the other one."""
    return device.cuda and dtype != kept


def token_norm(width: int, dtype: torch.dtype, device: Device) -> Norm:
    """LayerNorm and RMSNorm: a program holds whole tokens."""
    able = device.triton and dtype != torch.float64 and width <= 16384
    return Norm.TRITON if able else Norm.TORCH


class Recurrent(StrEnum):
    """The ways to take the steps of an LSTM."""

    TRITON = "Triton"
    TORCH = "torch"


def recurrent(dtype: torch.dtype, device: Device) -> Recurrent:
    """A kernel for each step, or several of torch's."""
    able = device.triton and dtype != torch.float64
    return Recurrent.TRITON if able else Recurrent.TORCH


def turns_by_triton(x: Tensor, cos: Tensor, device: Device) -> bool:
    """Whether a kernel turns heads [m, n, heads, t, d]: by the same angles for all workers."""
    alike = len(cos) == 1 or cos.stride(0) == 0
    return device.triton and x.dtype != torch.float64 and x.ndim == 5 and alike


def drops_by_triton(x: Tensor, device: Device) -> bool:
    """Whether a kernel draws the masks of dropout on the way: x must lie in one piece."""
    whole = x.is_contiguous() or has_channels_last(x)
    return device.triton and x.dtype != torch.float64 and whole and x.numel() > 0


def crosses_by_triton(dtype: torch.dtype, device: Device) -> bool:
    """Whether a kernel computes cross-entropy in the memory of logits."""
    return device.triton and dtype != torch.float64


def ends_in_loss(device: Device) -> bool:
    """Whether a linear layer and the cross-entropy of samples are one step, as those of words are.

    On a GPU the logits are few, and the loss that was given takes no longer.
    """
    return not device.cuda


def puts_words_first(words: int, device: Device) -> bool:
    """Whether logits lie in memory by words, then samples: torch sums few numbers in a row slowly.

    A kernel of our own, like one for many words, wants those of a sample in one piece.
    """
    return words < _FEW_WORDS and not device.triton and not device.cuda
