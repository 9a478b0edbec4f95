"""The convolutions of wide networks, in CUDA for Hopper's warp groups: bf16, 3 x 3.

A block brings squares of 8 x 8 pixels with their rims to shared memory once for all nine taps, so
that a product waits for neither the memory nor the L2. Stride 2 is stride 1 with three of four
outputs not kept: few layers have it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from partavg.engines.fused.convolution.case import Case
from partavg.engines.fused.convolution.cuda_sources import evenly, processors, start
from partavg.engines.fused.convolution.tiling import Constants

_SPLITS = 16  # partial sums of the weights' gradient, at most
_BESIDE = 4  # pairs of squares that take as long as a block's beginning and end
_BARRIERS = 256
_FEW = 256  # threads of the kernels that only move numbers


class Squares(NamedTuple):
    """A convolution of C channels to K: the constants of the kernels."""

    C: int
    K: int
    GH: int
    """Height and width of the inputs."""
    GW: int
    stride: int = 1

    @classmethod
    def of(cls, case: Case) -> "Squares | None":
        """None where the kernels cannot do it."""
        window = case.window
        plain = window.stride in ((1, 1), (2, 2)) and window.dilation == (1, 1)
        same = case.taps == (3, 3) and window.rim == (1, 1) and window.groups == 1
        sizes = cls(case.inputs, case.outputs, case.height, case.width, window.stride[0])
        whole = case.height % 8 == case.width % 8 == 0 and case.images > 0
        wide = bool(_columns(sizes.C) and _columns(sizes.K))
        able = plain and same and whole and wide and not case.bias and case.contiguous
        return sizes if able and case.dtype == torch.bfloat16 else None

    def per_worker(self, count: int) -> int:
        """Squares of a worker's images."""
        return count * self.GH * self.GW // 64

    def outputs(self, x: Tensor) -> tuple[int, ...]:
        """The shape of outputs for x [m, n, c, h, w]."""
        return *x.shape[:2], self.K, self.GH // self.stride, self.GW // self.stride

    def constants(self, **more: int) -> Constants:
        """For a kernel."""
        own = {"C": self.C, "K": self.K, "GH": self.GH, "GW": self.GW}
        return tuple({**own, **more}.items())


def _columns(channels: int) -> int:
    """How many of so many outputs a block computes; 0 if it would waste some."""
    return next((n for n in (160, 128) if channels % n == 0), 0)


def pack(weight: Tensor, own: Squares) -> tuple[Tensor, Tensor]:
    """Weights [m, K, C, 3, 3] as a block reads them in bf16, ahead and for input gradients."""
    ahead = weight.new_empty(len(weight), 9, own.C // 8, own.K, 8, dtype=torch.bfloat16)
    back = weight.new_empty(len(weight), 9, own.K // 8, own.C, 8, dtype=torch.bfloat16)
    grid = own.K // 8 * (own.C // 32), len(weight)
    arguments = [weight, ahead, back, weight.stride(0)]
    start("pack_squares", own.constants(THREADS=9 * 32), 8 * 289 * 4, grid, arguments)
    return ahead, back


def convolve(x: Tensor, packed: Tensor, own: Squares, added: Tensor | None) -> Tensor:
    """Outputs for x [m, n, h, w, C], plus `added`."""
    return _convolve(x, packed, own, added, STEP_X=1, STEP_Y=own.stride)


def input_gradient(grad: Tensor, packed: Tensor, own: Squares, added: Tensor | None) -> Tensor:
    """That of inputs from that of outputs [m, n, h / stride, w / stride, K], plus `added`."""
    back = own._replace(C=own.K, K=own.C)
    return _convolve(grad, packed, back, added, STEP_X=own.stride, STEP_Y=1)


def _convolve(
    x: Tensor, packed: Tensor, own: Squares, added: Tensor | None, **steps: int
) -> Tensor:
    workers, count = x.shape[:2]
    columns = _columns(own.K)
    depth = {"DEPTH_X": 3, "DEPTH_W": 4}
    memory = _BARRIERS + 2 * (3 * 4 * (4 * 100 * 8 + 16) + 4 * 3 * 32 * columns)
    tiles = workers * -(-own.per_worker(count) // 4) * (own.K // columns)
    sides = own.GH // steps["STEP_Y"], own.GW // steps["STEP_Y"]
    y = x.new_empty(workers, count, *sides, own.K)
    constants = own.constants(N=columns, ADD=added is not None, **depth, **steps, THREADS=384)
    grid = min(tiles, processors(x.device)), 1
    arguments = [x, packed, y if added is None else added, y, count, tiles]
    start("convolve_squares", constants, memory, grid, arguments)
    return y


def weight_gradient(x: Tensor, grad: Tensor, own: Squares) -> Tensor:
    """[m, K, C, 3, 3] from x [m, n, h, w, C] and the outputs' gradient [m, n, …, K]."""
    workers, count = x.shape[:2]
    columns, depth = _columns(own.K), 3
    blocks = 3 * -(-own.C // 64) * (own.K // columns)
    pairs = -(-own.per_worker(count) // 2)
    each = evenly(pairs, blocks * workers, processors(x.device), _SPLITS, beside=_BESIDE)
    splits = -(-pairs // each)
    parts = torch.empty((splits, workers, 9, own.C, own.K), dtype=torch.float32, device=x.device)
    memory = 4 * _BARRIERS + 2 * 64 * depth * (2 * 80 + -(-columns // 64) * 2 * 64)
    constants = own.constants(N=columns, DEPTH=depth, STEP_Y=own.stride, THREADS=512)
    arguments = [x, grad, parts, count, each, workers]
    start("weigh_squares", constants, memory, (blocks, splits * workers), arguments)
    out = torch.empty((workers, own.K, own.C, 3, 3), dtype=torch.float32, device=x.device)
    grid = own.K // 32 * (own.C // 32), workers
    turned = own.constants(THREADS=_FEW)
    start("turn_squares", turned, 32 * 289 * 4, grid, [parts, out, splits, workers])
    return out
