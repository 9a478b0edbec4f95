"""Averages over workers and the distance from them."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.partition import Span
from partavg.core.solver import Solver, State, Sync

Arriving = Callable[[], Tensor]
"""A sum over all workers [l] that may be on its way: call it to wait for it."""


@runtime_checkable
class Reduce(Protocol):
    """A sum over this process's workers [l] -> that over all workers: all that a backend adds."""

    @property
    def room(self) -> int:
        """Columns behind those of a message that it wants for itself."""
        ...

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: bool = False
    ) -> Arriving:
        """Begin to sum; `message` is used up.

        Messages of one key are about the same at different times. Where a sum must be `exact`
        nothing may be rounded.
        """
        ...


_BLOCK = 1 << 20  # elements of scratch memory that a pass over [m, d] may use


class Alone:
    """The Reduce of a process that holds all workers."""

    room = 0

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: bool = False
    ) -> Arriving:
        """The sum is complete."""
        return lambda: message


alone = Alone()


def collect(
    columns: Sequence[Float[Tensor, "m _"]],
    state: State,
    spans: Sequence[Span],
    *,
    solver: Solver,
    sync: Sync,
    weights: Float[Tensor, "m"],
    reduce: Reduce,
    key: int | None = None,
    exact: bool = False,
) -> tuple[Arriving, list[int]]:
    """The weighted sums of all workers' messages about a part in one reduction, and their lengths.

    `columns` are those of the spans, then those of buffers. They are views: where the message is
    the parameters themselves, only their weighted sum, one row, is new.
    """
    encoded = [
        solver.encode(rows, {k: v[:, a:b] for k, v in state.items()}, sync)
        for rows, (a, b) in zip(columns, spans, strict=False)
    ]
    encoded += columns[len(spans) :]
    lengths = [rows.shape[1] for rows in encoded]
    message = weights.new_empty(1, sum(lengths) + reduce.room)
    pieces = torch.split(message, [*lengths, reduce.room], 1)
    for rows, piece in zip(encoded, pieces, strict=False):
        if len(weights) == 1:
            torch.mul(rows, weights[:, None], out=piece)
        else:
            torch.mm(weights[None], rows, out=piece)  # on a CPU in half the time of weights @ rows
    return reduce(message[0], key, exact=exact), lengths


def deliver_(
    columns: Sequence[Float[Tensor, "m _"]],
    totals: Sequence[Tensor],
    state: State,
    spans: Sequence[Span],
    *,
    solver: Solver,
    sync: Sync,
) -> None:
    """Give the sums to all workers; `columns` are those of the spans, then those of buffers."""
    for rows, total, (a, b) in zip(columns, totals, spans, strict=False):
        solver.decode_(rows, total, {k: v[:, a:b] for k, v in state.items()}, sync)
    for rows, total in zip(columns[len(spans) :], totals[len(spans) :], strict=True):
        rows.copy_(total)


def reduced(reduce: Reduce, values: Float[Tensor, "_"]) -> Float[Tensor, "_"]:
    """The sum of some values over all processes, at once."""
    return reduce(torch.nn.functional.pad(values, (0, reduce.room)))()


def consensus(
    rows: Float[Tensor, "m d"], weights: Float[Tensor, "m"], reduce: Reduce = alone
) -> Float[Tensor, "d"]:
    """The averaged model u = Σ p_i x_i."""
    return reduced(reduce, (weights[None] @ rows)[0])


def discrepancy(
    rows: Float[Tensor, "m d"], weights: Float[Tensor, "m"], reduce: Reduce = alone
) -> Float[Tensor, "d"]:
    """How far the workers are apart, per column: (1/m) Σ_i (u − x_i)².

    The sum over the columns is the paper's discrepancy (1/m) Σ_i ‖u − x_i‖²; `per_part` sums
    over the columns of each part. u is weighted, the mean over workers is not.

    >>> discrepancy(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([0.5, 0.5]))
    tensor([1., 0.])
    """
    center = consensus(rows, weights, reduce)
    width = max(1, _BLOCK // len(rows))
    blocks = zip(torch.split(rows, width, 1), torch.split(center, width), strict=True)
    squares = [(block - mean).square_().sum(0) for block, mean in blocks]
    ones = torch.ones(1, dtype=rows.dtype, device=rows.device) * len(rows)
    total = reduced(reduce, torch.cat([*squares, ones]))
    return total[:-1] / total[-1]


def per_part(
    columns: Float[Tensor, "d"], owners: Int[Tensor, "d"], parts: int
) -> Float[Tensor, "p"]:
    """Sum a value per column over the columns of each part."""
    return columns.new_zeros(parts).index_add_(0, owners, columns)
