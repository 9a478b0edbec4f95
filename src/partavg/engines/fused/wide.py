"""Convolutions with many channels for all workers, on Hopper's copy engine: bf16, stride 1."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from partavg.engines.fused import wide_kernels
from partavg.engines.fused.conv_triton import weight_gradient
from partavg.kernels.backend import roomy
from partavg.kernels.launch import launch

_BLOCK = 256  # pairs of channels whose taps a program turns


class Box(NamedTuple):
    """Images, rows and columns of a tile of 128 pixels."""

    images: int
    rows: int
    columns: int

    @classmethod
    def of(cls, x: Tensor) -> "Box":
        """For x [m, n, h, w, c]: powers of 2 that waste few pixels."""
        count, height, width = x.shape[1:4]
        columns = min(128, int(triton.next_power_of_2(width)))
        sizes = [(128 // columns // rows, rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128)]
        fitting = [(n, rows) for n, rows in sizes if n and count % n == 0]
        images, rows = min(fitting, key=lambda size: (-(-height // size[1]) * size[1], size[0]))
        return cls(images, rows, columns)

    @property
    def pixels(self) -> int:
        """Of a tile."""
        return self.images * self.rows * self.columns

    def gapless(self, x: Tensor) -> bool:
        """Whether a worker's boxes one after another are its pixels one after another."""
        blocks, tall, wide = self.grid(x)
        whole = (
            self.columns == x.shape[3]
            and blocks * tall * wide * self.pixels == x[0, ..., 0].numel()
        )
        return whole and (self.images == 1 or self.rows == x.shape[2])

    def grid(self, x: Tensor) -> tuple[int, int, int]:
        """Boxes along the images of a worker, their rows and columns."""
        sizes = zip(x.shape[1:4], self, strict=True)
        images, rows, columns = (-(-size // each) for size, each in sizes)
        return images, rows, columns


def usable(
    x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int], dilation: Any
) -> bool:
    """Whether the kernels can convolve x [m, n, h, w, c] with weights [m, k, c, r, s]."""
    outputs, inputs, high, wide = weight.shape[1:]
    same = high == wide and padding == (high // 2, wide // 2) and high % 2 == 1
    return (
        roomy(x.device)
        and x.dtype == torch.bfloat16
        and same
        and stride == (1, 1)
        and dilation == (1, 1)
        and inputs % 16 == 0
        and outputs % 16 == 0
        and inputs >= 32
        and outputs >= 32
        and weight[0].is_contiguous()
    )


class Conv(torch.autograd.Function):
    """conv2d; also returns its input, for others to use: their gradients are added on the way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        x = x.permute(0, 1, 3, 4, 2).contiguous()
        ctx.set_materialize_grads(False)
        ctx.bias, ctx.shape = bias is not None, weight.shape
        low = _tap_first(weight.detach(), x.dtype)
        ctx.save_for_backward(x, low)
        y = _convolve(x, low, bias, None, back=False)
        return y.permute(0, 1, 4, 2, 3), x.permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, added: Tensor | None) -> Any:
        x, low = ctx.saved_tensors
        grad = grad.permute(0, 1, 3, 4, 2).contiguous()
        dx = None
        if ctx.needs_input_grad[0]:
            other = None if added is None else added.permute(0, 1, 3, 4, 2).contiguous()
            dx = _convolve(grad, low, None, other, back=True).permute(0, 1, 4, 2, 3)
        dbias = grad.sum((1, 2, 3), dtype=torch.float32) if ctx.bias else None
        if Box.of(x).gapless(x):
            return dx, _weight_gradient(x, grad, ctx.shape), dbias
        padding = ctx.shape[3] // 2, ctx.shape[4] // 2
        return dx, weight_gradient(x, grad, ctx.shape[3:], 1, padding), dbias


def _convolve(
    x: Tensor, low: Tensor, bias: Tensor | None, added: Tensor | None, *, back: bool
) -> Tensor:
    """Outputs, or input gradients, from weights [m, taps, k, c]."""
    workers, count = x.shape[:2]
    taps, outputs, inputs = low.shape[1:]
    if back:
        outputs, inputs = inputs, outputs
    side = round(taps**0.5)
    box, (blocks, tall, wide) = Box.of(x), Box.of(x).grid(x)
    block_c = 64 if inputs % 64 == 0 or inputs > 128 else 32
    block_k = 128 if outputs % 128 == 0 else 64 if outputs >= 64 else 32
    y = x.new_empty(*x.shape[:4], outputs)
    filters = low.flatten(0, 1)
    launch(
        wide_kernels.conv,
        (blocks * tall * wide * triton.cdiv(outputs, block_k), workers),
        (
            _described(x.flatten(0, 1), [*box, block_c]),
            _described(filters, [1, block_c, block_k] if back else [1, block_k, block_c]),
            _described((y if added is None else added).flatten(0, 1), [*box, block_k]),
            _described(y.flatten(0, 1), [*box, block_k]),
            x if bias is None else bias,
        ),
        {
            "images": count,
            "bias_stride": 0 if bias is None else bias.stride(0),
            "TALL": tall,
            "WIDE": wide,
        },
        C=inputs,
        K=outputs,
        SIDE=side,
        PAD=side // 2,
        BACK=back,
        BIAS=bias is not None,
        ADD=added is not None,
        BN=box.images,
        BH=box.rows,
        BW=box.columns,
        BK=block_k,
        BC=block_c,
        num_warps=8 if block_k == 128 else 4,
        num_stages=4,
    )
    return y


def _weight_gradient(x: Tensor, grad: Tensor, shape: torch.Size) -> Tensor:
    """[m, k, c, r, s] from the inputs and the outputs' gradient."""
    workers, outputs, inputs, side = shape[:4]
    box, (blocks, tall, wide) = Box.of(x), Box.of(x).grid(x)
    block_c, block_k = (
        128 if size % 128 == 0 else 64 if size >= 64 else 32 for size in (inputs, outputs)
    )
    out = torch.empty((workers, side * side, outputs, inputs), device=x.device)
    tiles = side * side * triton.cdiv(outputs, block_k) * triton.cdiv(inputs, block_c)
    launch(
        wide_kernels.conv_weight,
        (tiles, workers),
        (
            _described(x.flatten(0, 1), [*box, block_c]),
            _described(grad.flatten(0, 3), [box.pixels, block_k]),
            out,
        ),
        {"images": x.shape[1], "TALL": tall, "WIDE": wide, "BOXES": blocks * tall * wide},
        C=inputs,
        K=outputs,
        SIDE=side,
        PAD=side // 2,
        BN=box.images,
        BH=box.rows,
        BW=box.columns,
        BK=block_k,
        BC=block_c,
        num_warps=8 if block_k == block_c == 128 else 4,
        num_stages=3,
    )
    found = torch.empty(shape, device=x.device)
    grid = triton.cdiv(outputs * inputs, _BLOCK), workers
    launch(
        wide_kernels.tap_last,
        grid,
        (out, found),
        {"channels": outputs * inputs},
        TAPS=side * side,
        T=triton.next_power_of_2(side * side),
        BLOCK=_BLOCK,
    )
    return found


def _tap_first(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights [m, k, c, r, s] as [m, taps, k, c]."""
    workers, outputs, inputs, *sides = weight.shape
    taps = sides[0] * sides[1]
    out = torch.empty((workers, taps, outputs, inputs), dtype=dtype, device=weight.device)
    grid = triton.cdiv(outputs * inputs, _BLOCK), workers
    launch(
        wide_kernels.tap_first,
        grid,
        (weight, out),
        {"apart": weight.stride(0), "channels": outputs * inputs},
        TAPS=taps,
        T=triton.next_power_of_2(taps),
        BLOCK=_BLOCK,
    )
    return out


def _described(tensor: Tensor, block: list[int]) -> Any:
    return TensorDescriptor.from_tensor(tensor, block)
