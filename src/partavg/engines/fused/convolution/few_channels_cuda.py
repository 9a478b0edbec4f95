"""The convolutions of small residual networks, in CUDA: bf16, 16 to 64 channels, 3 x 3 or 1 x 1.

With so few channels a matrix product is limited by how often pixels are read. These kernels keep
tiles of pixels in shared memory, the next one on its way, and read all taps from there. What
BatchNorm has to add up over all pixels, forward and backward, they add up as they write them.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from partavg.engines.fused.convolution.cuda_sources import evenly, processors, start
from partavg.engines.fused.convolution.tiling import BothGradients, Tiling, transposed
from partavg.engines.fused.rows import Places

_SPLITS = 32  # partial sums that BatchNorm adds up
_ADDED_AT_ONCE = 32 * 32 * 9  # weights that one block adds up; 64 x 64 x 9 in four parts took 18 µs


class NormBefore(NamedTuple):
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


class Room(NamedTuple):
    """Where the gradients of parameters are written, and the tickets of blocks that add them up."""

    weight: Tensor
    """[m, k, c, r, s], each worker's in one piece."""
    norm: tuple[Tensor, Tensor]
    """Of the weight and bias of the norm before it, [m, c]."""
    of_weight: Tensor
    """A ticket for each worker: 0, and 0 again when all blocks have come."""
    of_norm: Tensor

    @classmethod
    def of(cls, x: Tensor, own: Tiling, places: Places) -> "Room":
        """The places there are, and memory of its own for the rest."""
        workers, side = len(x), 3 if own.TAPS == 9 else 1
        weight, norm, tickets = places
        if weight is None:
            shape = workers, own.K, own.REAL, side, side
            weight = torch.empty(shape, dtype=torch.float32, device=x.device)
        if norm is None:
            gamma, beta = torch.empty((2, workers, own.C), dtype=torch.float32, device=x.device)
            norm = gamma, beta
        if tickets is None:
            tickets = torch.zeros((2, workers), dtype=torch.int32, device=x.device)
        return cls(weight, norm, *tickets)


class NormAfter(NamedTuple):
    """The BatchNorm after a convolution: the sums of its gradients are known."""

    x: Tensor
    sums: Tensor
    mean: Tensor
    rstd: Tensor
    weight: Tensor


def pack_weights(weight: Tensor, own: Tiling) -> tuple[Tensor, Tensor]:
    """Weights [m, k, c, r, s] as warps multiply them, ahead and for input gradients."""
    both = weight.new_empty(2, len(weight), 9 * own.C * own.K, dtype=torch.bfloat16)
    vec, vec_back = (tiling.K // 8 // tiling.forward()["WN"] for tiling in (own, transposed(own)))
    constants = own.constants(VEC=vec, VEC_BACK=vec_back, FLIP=own.STRIDE == 1, THREADS=256)
    memory = 16 * own.C * (own.TAPS + 1) * 4
    grid = own.K // 16, len(weight)
    start("pack_weights", constants, memory, grid, [weight, *both, weight.stride(0)])
    return both[0], both[1]


def convolve(
    x: Tensor, weight: Tensor, own: Tiling, before: NormBefore | None = None
) -> tuple[Tensor, Tensor, int]:
    """Outputs for x [m, n, h, w, c], and their `norm.batch_norm.Statistics`: partials and pixels.

    With a norm before it, x is normalized on the way.
    """
    return _convolve(x, weight, own, before=before, ahead=True)


def input_gradient(
    grad: Tensor,
    weight: Tensor,
    own: Tiling,
    added: Tensor | None,
    before: NormBefore | None,
    room: Room | None = None,
) -> tuple[Tensor, Tensor]:
    """The inputs' gradient plus `added`, sent back through a ReLU; what its BatchNorm adds up.

    The partial sums are of the gradient and of it times the normalized x. With `room` they are
    added up: the gradients of the norm's bias and weight.
    """
    return _convolve(grad, weight, transposed(own), added, before, room)[:2]


def _convolve(
    x: Tensor,
    weight: Tensor,
    own: Tiling,
    added: Tensor | None = None,
    before: NormBefore | None = None,
    room: Room | None = None,
    *,
    ahead: bool = False,
) -> tuple[Tensor, Tensor, int]:
    workers, count = x.shape[:2]
    scale = 2 if own.UP else 1
    y = x.new_empty(workers, count, own.GH * scale, own.GW * scale, own.K)
    gated = before is not None and not ahead
    cut = own.forward(gated=gated)
    each = _each(own.tiles(count), workers, cut["BLOCKS"], x.device)
    splits = -(-own.tiles(count) // each)
    partial = torch.empty((workers, splits, 2, own.K), dtype=torch.float32, device=x.device)
    constants = own.constants(
        **{name: cut[name] for name in ("WN", "RW", "THREADS", "BLOCKS", "HELD", "EARLY")},
        ADD=added is not None,
        SUMS=2 if gated else int(ahead),
        NORMED=before is not None and ahead,
        RESIDUAL=before is not None and before.added and before.relu,
        RELU=before is not None and before.relu,
        AFFINE=room is not None,
    )
    norm: list[Any] = [y, y, *[partial] * 4]
    if before:
        z = before.x if before.z is None else before.z
        norm = [before.x, z, before.mean, before.rstd, before.weight, before.bias]
    apart = before.weight.stride(0) if before else 0
    affine = [partial] * 3 if room is None else [*room.norm, room.of_norm]
    tensors = [x, weight, y if added is None else added, *norm, y, partial, *affine]
    sizes = count, each, apart, 0 if room is None else room.norm[0].stride(0)
    start("convolve", constants, cut["memory"], (splits, workers), [*tensors, *sizes])
    return y, partial, each * own.pixels * scale * scale


def weight_gradient(x: Tensor, grad: Tensor, own: Tiling, room: Room) -> Tensor:
    """[m, k, c, r, s] from x [m, n, h, w, c] and the outputs' gradient [m, n, h, w, k]."""
    workers, count = x.shape[:2]
    cut = own.weight()
    tiles = own.tiles(count)
    each = _each(tiles, workers, cut["BLOCKS"], x.device)
    splits = -(-tiles // each)
    parts, out = _parts(room.weight, splits), room.weight
    total = out[0].numel() <= _ADDED_AT_ONCE
    constants = own.constants(
        **{name: cut[name] for name in ("RW", "SIDE", "THREADS", "BLOCKS")}, TOTAL=total
    )
    arguments = [x, grad, parts, out, room.of_weight, count, each, workers, out.stride(0)]
    start("weight_gradient", constants, cut["memory"], (splits, workers), arguments)
    if splits > 1 and not total:
        torch.sum(parts, 0, out=out)
    return out


def _parts(whole: Tensor, splits: int) -> Tensor:
    """Room for what is added up to a whole; there is nothing to add to a single one."""
    shape = (0 if splits == 1 else splits, *whole.shape)
    return torch.empty(shape, dtype=whole.dtype, device=whole.device)


def both_gradients(
    grad: Tensor,
    after: NormAfter,
    weight: Tensor,
    own: Tiling,
    added: Tensor | None,
    before: NormBefore,
    room: Room,
    *,
    affine: bool,
) -> tuple[Tensor, Tensor]:
    """`input_gradient`, with its sums, and `weight_gradient`, from a gradient after a BatchNorm.

    Those of parameters go to `room`; of the norm before it, if they are wanted.
    """
    both = BothGradients(*transposed(own))
    workers, count = grad.shape[:2]
    cut = both.cut()
    each = _each(both.tiles(count), workers, cut["BLOCKS"], grad.device)
    splits = -(-both.tiles(count) // each)
    dx = torch.empty_like(before.x)
    partial = torch.empty((workers, splits, 2, both.K), dtype=torch.float32, device=grad.device)
    out = room.weight
    constants = both.constants(
        **{name: cut[name] for name in ("WN", "RW", "SIDE", "HELD", "THREADS", "BLOCKS")},
        ADD=added is not None,
        NORMED=before.z is None,
        RELU=before.relu,
        AFFINE=affine,
    )
    arguments = [
        *(grad, *after, weight, dx if added is None else added),
        *(before.x, before.x if before.z is None else before.z),
        *(before.mean, before.rstd, before.weight, before.bias, dx, partial),
        *(_parts(out, splits), out, *room.norm, room.of_weight),
        *(count, each, workers, after.sums.shape[1]),
        *(after.weight.stride(0), before.weight.stride(0), out.stride(0), room.norm[0].stride(0)),
    ]
    start("both_gradients", constants, cut["memory"], (splits, workers), arguments)
    return dx, partial


def _each(tiles: int, workers: int, blocks: int, device: torch.device) -> int:
    """Tiles for one block."""
    return evenly(tiles, workers, blocks * processors(device), _SPLITS)
