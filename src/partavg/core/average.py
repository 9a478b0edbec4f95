"""Averages over workers and the distance from them."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.partition import Span
from partavg.core.solver import Solver, State, Sync, plain
from partavg.kernels.backend import uses_triton

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


_BLOCK = 1 << 20  # elements of scratch memory for a pass over [m, d]


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
    encoded = list(columns)
    if not plain(solver):
        for place, (a, b) in enumerate(spans):
            memory = {k: v[:, a:b] for k, v in state.items()}
            encoded[place] = solver.encode(columns[place], memory, sync)
    lengths = [rows.shape[1] for rows in encoded]
    message = weights.new_empty(sum(lengths) + reduce.room)
    own = sum(lengths[: len(spans)])
    _weigh_(message[:own], encoded[: len(spans)], weights)
    _weigh_(message[own : sum(lengths)], encoded[len(spans) :], weights)
    return reduce(message, key, exact=exact), lengths


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
    if plain(solver):
        _spread_(columns[: len(spans)], totals)
    else:
        for rows, total, (a, b) in zip(columns, totals, spans, strict=False):
            solver.decode_(rows, total, {k: v[:, a:b] for k, v in state.items()}, sync)
    _spread_(columns[len(spans) :], totals[len(spans) :])


def _weigh_(
    out: Float[Tensor, "_"], columns: Sequence[Float[Tensor, "m _"]], weights: Float[Tensor, "m"]
) -> None:
    """The weighted sums of columns, one after another."""
    if _at_once(columns):
        from partavg.kernels.sums import weigh_

        return weigh_(out, *_lying(columns), weights)
    for rows, piece in zip(columns, torch.split(out, [c.shape[1] for c in columns]), strict=True):
        if len(weights) == 1:
            torch.mul(rows[0], weights, out=piece)
        else:
            torch.mm(weights[None], rows, out=piece[None])  # in half the time of weights @ rows
    return None


def _spread_(columns: Sequence[Float[Tensor, "m _"]], totals: Sequence[Float[Tensor, "_"]]) -> None:
    """Give all rows the sums, which lie one after another."""
    if _at_once(columns):
        from partavg.kernels.sums import spread_

        return spread_(*_lying(columns), totals[0])
    for rows, total in zip(columns, totals, strict=False):
        rows.copy_(total)
    return None


def _at_once(columns: Sequence[Float[Tensor, "m _"]]) -> bool:
    """Whether one kernel takes all columns: on a GPU, where they are views of one tensor.

    There a kernel for each of them would cost more than the sums.
    """
    return (
        bool(columns)
        and columns[0].numel() > 0
        and len(columns[0]) > 1
        and columns[0].dtype == torch.float32
        and uses_triton(columns[0])
        and all(rows.stride(1) == 1 for rows in columns)
        and len({(rows.untyped_storage().data_ptr(), rows.stride(0)) for rows in columns}) == 1
    )


def _lying(columns: Sequence[Float[Tensor, "m _"]]) -> tuple[Tensor, tuple[Span, ...]]:
    """The tensor that all columns are views of, and where they lie in it."""
    width = columns[0].stride(0)
    rows = columns[0].as_strided((len(columns[0]), width), (width, 1), 0)
    starts = [int(view.storage_offset()) for view in columns]
    return rows, tuple(Span(a, a + view.shape[1]) for a, view in zip(starts, columns, strict=True))


def reduced(reduce: Reduce, values: Float[Tensor, "_"]) -> Float[Tensor, "_"]:
    """The sum of some values over all processes, at once."""
    return reduce(torch.nn.functional.pad(values, (0, reduce.room)))()


def consensus(
    rows: Float[Tensor, "m d"], weights: Float[Tensor, "m"], reduce: Reduce = alone
) -> Float[Tensor, "d"]:
    """The averaged model u = Σ p_i x_i.

    >>> consensus(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([0.5, 0.5]))
    tensor([1., 1.])
    """
    total = rows.new_empty(rows.shape[1])
    _weigh_(total, [rows], weights)
    return reduced(reduce, total)


def discrepancy(
    rows: Float[Tensor, "m d"], weights: Float[Tensor, "m"], reduce: Reduce = alone
) -> Float[Tensor, "d"]:
    """How far the workers are apart, per column: (1/m) Σ_i (u − x_i)².

    The sum over the columns is the paper's discrepancy (1/m) Σ_i ‖u − x_i‖²; `per_part` sums
    over the columns of each part. u is weighted, the mean over workers is not.

    >>> discrepancy(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([0.5, 0.5]))
    tensor([1., 0.])
    """
    squares = _squares(rows, consensus(rows, weights, reduce))
    count = rows.new_full((1,), len(rows))
    total = reduced(reduce, torch.cat([squares, count]))
    return total[:-1] / total[-1]


def _squares(rows: Float[Tensor, "m d"], center: Float[Tensor, "d"]) -> Float[Tensor, "d"]:
    """Σ_i (u − x_i)²."""
    if _at_once([rows]):
        from partavg.kernels.sums import squares

        return squares(rows, center)
    width = max(1, _BLOCK // len(rows))
    blocks = zip(torch.split(rows, width, 1), torch.split(center, width), strict=True)
    return torch.cat([(block - mean).square_().sum(0) for block, mean in blocks])


def per_part(
    columns: Float[Tensor, "d"], owners: Int[Tensor, "d"], parts: int
) -> Float[Tensor, "p"]:
    """Sum a value per column over the columns of each part."""
    return columns.new_zeros(parts).index_add_(0, owners, columns)
