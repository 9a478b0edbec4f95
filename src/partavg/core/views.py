"""Columns of all workers that are held here, summed and written in one pass."""

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor

from partavg.core.partition import Span
from partavg.kernels.backend import uses_triton

_BLOCK = 1 << 20  # elements of scratch memory for a pass over [m, d]


class Slices:
    """Spans of the columns of one tensor [m, d]; views of them are made when asked for.

    There may be a hundred of them, and a kernel that takes all at once needs none.
    """

    def __init__(self, rows: Float[Tensor, "m d"], spans: Sequence[Span]) -> None:
        self.rows = rows
        self.spans = spans

    @classmethod
    def all_of(cls, rows: Float[Tensor, "m d"]) -> "Slices":
        """All columns, in one span."""
        return cls(rows, (Span(0, rows.shape[1]),))

    def __len__(self) -> int:
        """How many spans there are."""
        return len(self.spans)

    def __iter__(self) -> Iterator[Float[Tensor, "m _"]]:
        """Views of them."""
        return (self.rows[:, start:stop] for start, stop in self.spans)


Views = Slices | list[Tensor]
"""What an exchange reads and writes: columns [m, _] of all workers held here."""


def weigh_(out: Float[Tensor, "_"], columns: Views, weights: Float[Tensor, "m"]) -> None:
    """The weighted sums of columns, one after another."""
    if at_once(columns):
        from partavg.kernels import sums as kernels

        return kernels.weigh_(out, columns.rows, columns.spans, weights)
    for rows, piece in zip(columns, torch.split(out, widths(columns)), strict=True):
        if len(weights) == 1:
            torch.mul(rows[0], weights, out=piece)
        elif rows.dtype == weights.dtype:
            torch.mm(weights[None], rows, out=piece[None])  # in half the time of weights @ rows
        else:
            for block, sums in _blocks(rows, piece):
                torch.sum(weights[:, None] * block, 0, out=sums)
    return None


def spread_(columns: Views, total: Float[Tensor, "_"]) -> None:
    """Give all rows the sums, which lie one after another."""
    if at_once(columns):
        from partavg.kernels import sums as kernels

        return kernels.spread_(columns.rows, columns.spans, total)
    for rows, piece in zip(columns, torch.split(total, widths(columns)), strict=True):
        rows.copy_(piece)
    return None


def at_once(columns: Views) -> TypeGuard[Slices]:
    """Whether one kernel takes all columns: on a GPU, where they are those of one tensor.

    There a kernel for each of them would cost more than the sums.
    """
    return (
        isinstance(columns, Slices)
        and len(columns) > 0
        and columns.rows.numel() > 0
        and len(columns.rows) > 1
        and columns.rows.dtype == torch.float32
        and columns.rows.stride(1) == 1
        and uses_triton(columns.rows)
    )


def widths(columns: Views) -> list[int]:
    """How many columns each view has."""
    if isinstance(columns, Slices):
        return [stop - start for start, stop in columns.spans]
    return [rows.shape[1] for rows in columns]


def squares(rows: Float[Tensor, "m d"], center: Float[Tensor, "d"]) -> Float[Tensor, "d"]:
    """Σ_i (u − x_i)²."""
    if at_once(Slices.all_of(rows)):
        from partavg.kernels import sums as kernels

        return kernels.squares(rows, center)
    return torch.cat([(block - mean).square_().sum(0) for block, mean in _blocks(rows, center)])


def _blocks(
    rows: Float[Tensor, "m d"], row: Float[Tensor, "d"]
) -> Iterator[tuple[Float[Tensor, "m _"], Float[Tensor, "_"]]]:
    """Some columns at a time, so that what is made of them needs little memory."""
    width = max(1, _BLOCK // max(1, len(rows)))
    return zip(torch.split(rows, width, 1), torch.split(row, width), strict=True)
