"""The convolutions of small residual networks, in CUDA: bf16, 16 to 64 channels, 3 x 3 or 1 x 1.

With so few channels a matrix product is limited by how often pixels are read. These kernels keep
tiles of pixels in shared memory, the next one on its way, and read all taps from there. What
BatchNorm has to add up over all pixels, forward and backward, they add up as they write them.
"""

from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import Tensor

from partavg.engines.fused.tiles import Both, Constants, Tiling, transposed
from partavg.kernels.backend import roomy
from partavg.kernels.launch import remembered

_SPLITS = 32  # partial sums that BatchNorm adds up
SOURCES = {"conv": ("pixels",), "weight": ("taps",), "back": ("pixels", "taps")}
"""What the kernels are made of, besides what all share."""


class Gate(NamedTuple):
    """What a BatchNorm and a ReLU did to the inputs of a convolution: x became z."""

    x: Tensor
    z: Tensor | None
    """None where the convolution normalizes x itself."""
    mean: Tensor
    rstd: Tensor
    weight: Tensor
    bias: Tensor
    added: bool
    """Whether something was added in between."""
    relu: bool


def usable(x: Tensor) -> bool:
    """Whether there are kernels for tensors like this one."""
    return roomy(x.device) and x.dtype == torch.bfloat16


def pack(weight: Tensor, own: Tiling) -> tuple[Tensor, Tensor]:
    """Weights [m, k, c, r, s] as warps multiply them, ahead and for input gradients."""
    both = weight.new_empty(2, len(weight), 9 * own.C * own.K, dtype=torch.bfloat16)
    vec, vec_back = (tiling.K // 8 // tiling.forward()["WN"] for tiling in (own, transposed(own)))
    constants = own.constants(VEC=vec, VEC_BACK=vec_back, FLIP=own.STRIDE == 1, THREADS=256)
    memory = 16 * own.C * (own.TAPS + 1) * 4
    grid = own.K // 16, len(weight)
    _start("pack", constants, memory, grid, [weight, *both, weight.stride(0)])
    return both[0], both[1]


def convolve(
    x: Tensor, weight: Tensor, own: Tiling, gate: Gate | None = None
) -> tuple[Tensor, Tensor, int]:
    """Outputs for x [m, n, h, w, c]; mean and squared deviations of their pieces; pixels of one.

    With a gate, x is normalized on the way.
    """
    return _convolve(x, weight, own, gate=gate, ahead=True)


def input_gradient(
    grad: Tensor, weight: Tensor, own: Tiling, added: Tensor | None, gate: Gate | None
) -> tuple[Tensor, Tensor, int]:
    """The inputs' gradient plus `added`, sent back through a gate; what its BatchNorm adds up.

    The sums, for pieces of the pixels, are of the gradient and of it times the normalized x.
    """
    return _convolve(grad, weight, transposed(own), added, gate)


def _convolve(
    x: Tensor,
    weight: Tensor,
    own: Tiling,
    added: Tensor | None = None,
    gate: Gate | None = None,
    *,
    ahead: bool = False,
) -> tuple[Tensor, Tensor, int]:
    workers, count = x.shape[:2]
    scale = 2 if own.UP else 1
    y = x.new_empty(workers, count, own.GH * scale, own.GW * scale, own.K)
    gated = gate is not None and not ahead
    cut = own.forward(gated=gated)
    each = _each(own.tiles(count), workers, cut["BLOCKS"], x.device)
    splits = -(-own.tiles(count) // each)
    partial = torch.empty((workers, splits, 2, own.K), device=x.device)
    constants = own.constants(
        **{name: cut[name] for name in ("WN", "RW", "THREADS", "BLOCKS", "HELD", "EARLY")},
        ADD=added is not None,
        SUMS=2 if gated else int(ahead),
        NORMED=gate is not None and ahead,
        RESIDUAL=gate is not None and gate.added and gate.relu,
        RELU=gate is not None and gate.relu,
    )
    norm: list[Any] = [y, y, *[partial] * 4]
    if gate:
        z = gate.x if gate.z is None else gate.z
        norm = [gate.x, z, gate.mean, gate.rstd, gate.weight, gate.bias]
    apart = gate.weight.stride(0) if gate else 0
    tensors = [x, weight, y if added is None else added, *norm, y, partial]
    _start("conv", constants, cut["memory"], (splits, workers), [*tensors, count, each, apart])
    return y, partial, each * own.pixels * scale * scale


def weight_gradient(x: Tensor, grad: Tensor, own: Tiling) -> Tensor:
    """[m, k, c, r, s] from x [m, n, h, w, c] and the outputs' gradient [m, n, h, w, k]."""
    workers, count = x.shape[:2]
    cut = own.weight()
    tiles = own.tiles(count)
    each = _each(tiles, workers, cut["BLOCKS"], x.device)
    splits = -(-tiles // each)
    side = 3 if own.TAPS == 9 else 1
    out = torch.empty((splits, workers, own.K, own.REAL, side, side), device=x.device)
    constants = own.constants(**{name: cut[name] for name in ("RW", "SIDE", "THREADS", "BLOCKS")})
    arguments = [x, grad, out, count, each, workers]
    _start("weight", constants, cut["memory"], (splits, workers), arguments)
    return out[0] if splits == 1 else out.sum(0)


class After(NamedTuple):
    """The BatchNorm after a convolution: the sums of its gradients are known."""

    x: Tensor
    sums: Tensor
    mean: Tensor
    rstd: Tensor
    weight: Tensor


def both_gradients(
    grad: Tensor, after: After, weight: Tensor, own: Tiling, added: Tensor | None, gate: Gate
) -> tuple[Tensor, Tensor, Tensor]:
    """`input_gradient`, with its sums, and `weight_gradient`, from a gradient after a BatchNorm."""
    both = Both(*transposed(own))
    workers, count = grad.shape[:2]
    cut = both.cut()
    each = _each(both.tiles(count), workers, cut["BLOCKS"], grad.device)
    splits = -(-both.tiles(count) // each)
    dx = torch.empty_like(gate.x)
    partial = torch.empty((workers, splits, 2, both.K), device=grad.device)
    dweight = torch.empty((splits, workers, both.C, both.K, 3, 3), device=grad.device)
    constants = both.constants(
        **{name: cut[name] for name in ("WN", "RW", "SIDE", "HELD", "THREADS", "BLOCKS")},
        ADD=added is not None,
        NORMED=gate.z is None,
        RELU=gate.relu,
    )
    arguments = [
        *(grad, *after, weight, dx if added is None else added),
        *(gate.x, gate.x if gate.z is None else gate.z),
        *(gate.mean, gate.rstd, gate.weight, gate.bias, dx, partial, dweight),
        *(count, each, workers, after.sums.shape[1]),
        *(after.weight.stride(0), gate.weight.stride(0)),
    ]
    _start("back", constants, cut["memory"], (splits, workers), arguments)
    return dx, partial, dweight


def _each(tiles: int, workers: int, blocks: int, device: torch.device) -> int:
    """Tiles for one block, so that all blocks end at about the same time."""
    slots = blocks * _processors(device)

    def time(splits: int) -> tuple[int, int]:
        return -(-splits * workers // slots) * -(-tiles // splits), splits

    return -(-tiles // min(range(1, min(tiles, _SPLITS) + 1), key=time))


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _compiled(name: str, constants: Constants, memory: int) -> Any:
    folder = resources.files(__package__) / "cuda"
    given = "".join(f"#define {key} {int(value)}\n" for key, value in constants)
    parts = "hopper", "common", *SOURCES.get(name, ()), name
    source = "".join((folder / f"{part}.cu").read_text() for part in parts)
    torch.cuda.synchronize()  # so that a thread of its own knows the device
    kernel = torch.cuda._compile_kernel(given + source, name)
    kernel.set_shared_memory_config(memory)
    return kernel


def _start(
    name: str, constants: Constants, memory: int, grid: tuple[int, int], arguments: list[Any]
) -> None:
    """Start a kernel on a grid of blocks, or remember to compile it."""
    if not remembered((name, constants), lambda: _compiled(name, constants, memory)):
        threads = dict(constants)["THREADS"]
        _compiled(name, constants, memory)((*grid, 1), (threads, 1, 1), arguments, memory)
