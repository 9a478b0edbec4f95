"""Where in a whole tensor the shard lies that this rank holds of it."""

from dataclasses import dataclass
from math import prod
from typing import Any, Self

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Box:
    """A range of every axis of a tensor of some shape; its numbers lie in the tensor's order.

    >>> right = Box(shape=(2, 3), offsets=(0, 1), sizes=(2, 2))  # columns 1, 2 and 4, 5 of 6
    >>> [right.before(column) for column in range(7)]
    [0, 0, 1, 2, 2, 3, 4]
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """The box that this rank holds: all of a tensor that is not sharded."""
        shape = tuple(tensor.shape)
        offsets, sizes = [0] * len(shape), list(shape)
        for axis, shards, place in _cuts(tensor):
            width = -(-sizes[axis] // shards)
            start = min(place * width, sizes[axis])
            offsets[axis] += start
            sizes[axis] = min(width, sizes[axis] - start)
        return cls(shape, tuple(offsets), tuple(sizes))

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the tensor."""
        return self.sizes == self.shape

    def before(self, column: int) -> int:
        """How many numbers of the box lie before a column of the flat tensor.

        So that columns [a, b) of the tensor are columns [before(a), before(b)) of the box.
        """
        if self.is_whole:
            return column  # whatever the order of its axes in memory
        count = 0
        for axis, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=True)):
            place, column = divmod(column, max(1, prod(self.shape[axis + 1 :])))
            count += min(max(place - offset, 0), size) * prod(self.sizes[axis + 1 :])
            if not offset <= place < offset + size:
                break
        return count


def held(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: its shard, or all of one that is not sharded."""
    sharded: Any = tensor
    local: Tensor = sharded.to_local() if is_distributed(tensor) else tensor
    return local.detach()


def is_distributed(tensor: Tensor) -> bool:
    """Whether it is a DTensor, whose import would take most of a second."""
    return hasattr(tensor, "placements")


def _cuts(tensor: Tensor) -> list[tuple[int, int, int]]:
    """The axis that each dimension of the mesh cuts, into how many, and this rank's place there.

    FSDP cuts what tensor parallelism left, though its dimension of the mesh comes first: such
    placements have a split factor.
    """
    if not is_distributed(tensor):
        return []
    sharded: Any = tensor
    mesh, coordinate = sharded.device_mesh, sharded.device_mesh.get_coordinate()
    known = zip(sharded.placements, mesh.shape, coordinate, strict=True)
    cuts = [
        (hasattr(placement, "split_factor"), (placement.dim, shards, place))
        for placement, shards, place in known
        if hasattr(placement, "dim")
    ]
    return [cut for late in (False, True) for is_late, cut in cuts if is_late == late]
