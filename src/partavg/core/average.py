"""Averages over workers and the distance from them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.abilities import abilities
from partavg.core.partition import Span
from partavg.core.solver import Solver, State, Sync
from partavg.kernels.backend import uses_triton

Arriving = Callable[[], Tensor]
"""A sum over all workers [l] that may be on its way: call it to wait for it."""


class LeftOut(Exception):
    """An average that did not come about: workers go on with what they have."""


Combine = Callable[[Tensor, Tensor], Tensor]
"""(messages [m, l] and weights [m] of all workers) -> one message [l]."""


@runtime_checkable
class Reduce(Protocol):
    """From this process's workers to all workers: all that a backend adds."""

    @property
    def room(self) -> int:
        """Views behind those of a message that it wants for itself."""
        ...

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """Begin to sum a message [l] over all processes; it is used up.

        Messages of one key are about the same at different times. Their last `exact` numbers,
        before the room, may not be rounded.
        """
        ...

    def gather(self, rows: Float[Tensor, "m l"]) -> Arriving:
        """Begin to collect the rows of all processes, one below the other."""
        ...


_BLOCK = 1 << 20  # elements of scratch memory for a pass over [m, d]


def accumulating(dtype: torch.dtype) -> torch.dtype:
    """The type of weights and sums over numbers of a type: float32 at least.

    In bfloat16 three weights of 1/3 add up to 1.002, and 300 averagings to twice the model.

    >>> accumulating(torch.bfloat16), accumulating(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


class Alone:
    """The Reduce of a process that holds all workers."""

    room = 0

    def __call__(
        self, message: Float[Tensor, "_"], key: int | None = None, *, exact: int = 0
    ) -> Arriving:
        """The sum is complete."""
        return lambda: message

    def gather(self, rows: Float[Tensor, "m l"]) -> Arriving:
        """All rows are here."""
        return lambda: rows


alone = Alone()


class Slices:
    """Spans of the columns of one tensor [m, d]; views of them are made when asked for.

    There may be a hundred of them, and a kernel that takes all at once needs none.
    """

    def __init__(self, rows: Float[Tensor, "m d"], spans: Sequence[Span]) -> None:
        self.rows = rows
        self.spans = spans

    def __len__(self) -> int:
        """How many spans there are."""
        return len(self.spans)

    def __iter__(self) -> Iterator[Float[Tensor, "m _"]]:
        """Views of them."""
        return (self.rows[:, start:stop] for start, stop in self.spans)


Views = Slices | list[Tensor]
"""What an exchange reads and writes: columns [m, _] of all workers held here."""


def collect(
    params: Views,
    buffers: Views,
    state: State,
    spans: Sequence[Span],
    *,
    solver: Solver,
    sync: Sync,
    weights: Float[Tensor, "m"],
    reduce: Reduce,
    key: int | None = None,
    exact: bool = False,
    combine: Combine | None = None,
) -> tuple[Arriving, list[int]]:
    """The weighted sums of all workers' messages about a part in one reduction, and their lengths.

    `params` are the columns of the spans. Where the message is the parameters themselves, only
    their weighted sum, one row, is new. To `combine` messages in another way they are collected.
    Sums have the type of the weights; they are rounded when they are delivered. Where they are to
    be `exact` no number is rounded on its way; buffers and what workers tell never are.
    """
    encoded, said = params, abilities(solver)
    if not said.plain:
        encoded = [
            solver.encode(rows, {k: v[:, a:b] for k, v in state.items()}, sync)
            for rows, (a, b) in zip(params, spans, strict=True)
        ]
    if said.tells:
        encoded = [*encoded, said.tells(sync).to(weights.dtype)]
    own, others = _widths(encoded), _widths(buffers)
    if combine is not None:
        return _combined([*encoded, *buffers], weights, reduce, combine), own + others
    middle, end = sum(own), sum(own) + sum(others)
    message = weights.new_empty(end + reduce.room)
    _weigh_(message[:middle], encoded, weights)
    _weigh_(message[middle:end], buffers, weights)
    told = own[-1] if said.tells else 0
    return reduce(message, key, exact=end if exact else end - middle + told), own + others


def _combined(
    messages: Sequence[Tensor], weights: Float[Tensor, "m"], reduce: Reduce, combine: Combine
) -> Arriving:
    """What a function makes of the whole messages, once those of all workers are here."""
    arriving = reduce.gather(torch.cat([*messages, weights[:, None]], 1))

    def combined() -> Tensor:
        rows = arriving()
        return combine(rows[:, :-1], rows[:, -1])

    return combined


def deliver_(
    params: Views,
    buffers: Views,
    total: Float[Tensor, "_"],
    lengths: list[int],
    state: State,
    spans: Sequence[Span],
    *,
    solver: Solver,
    sync: Sync,
) -> None:
    """Give the sums, of these lengths one after another, to all workers."""
    said = abilities(solver)
    own = lengths[: len(spans) + bool(said.tells)]
    middle = sum(own)
    if said.plain:
        _spread_(params, total[: sum(own[: len(spans)])])
    else:
        pieces = torch.split(total[:middle], own)
        if said.tells:
            sync = sync._replace(told=pieces[-1])
        kind = next((entry.dtype for entry in state.values()), None)
        for rows, piece, (a, b) in zip(params, pieces[: len(spans)], spans, strict=True):
            memory = {k: v[:, a:b] for k, v in state.items()}
            solver.decode_(rows, piece.to(kind or rows.dtype), memory, sync)
    _spread_(buffers, total[middle:])


def _weigh_(out: Float[Tensor, "_"], columns: Views, weights: Float[Tensor, "m"]) -> None:
    """The weighted sums of columns, one after another."""
    if _at_once(columns):
        from partavg.kernels.sums import weigh_

        return weigh_(out, columns.rows, columns.spans, weights)
    for rows, piece in zip(columns, torch.split(out, _widths(columns)), strict=True):
        if len(weights) == 1:
            torch.mul(rows[0], weights, out=piece)
        elif rows.dtype == weights.dtype:
            torch.mm(weights[None], rows, out=piece[None])  # in half the time of weights @ rows
        else:
            for block, sums in _blocks(rows, piece):
                torch.sum(weights[:, None] * block, 0, out=sums)
    return None


def _spread_(columns: Views, total: Float[Tensor, "_"]) -> None:
    """Give all rows the sums, which lie one after another."""
    if _at_once(columns):
        from partavg.kernels.sums import spread_

        return spread_(columns.rows, columns.spans, total)
    for rows, piece in zip(columns, torch.split(total, _widths(columns)), strict=True):
        rows.copy_(piece)
    return None


def _at_once(columns: Views) -> TypeGuard[Slices]:
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


def _widths(columns: Views) -> list[int]:
    if isinstance(columns, Slices):
        return [stop - start for start, stop in columns.spans]
    return [rows.shape[1] for rows in columns]


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
    return _mean(rows, weights, reduce).to(rows.dtype)


def _mean(
    rows: Float[Tensor, "m d"], weights: Float[Tensor, "m"], reduce: Reduce
) -> Float[Tensor, "d"]:
    """The same, in the type of the weights."""
    total = weights.new_empty(rows.shape[1])
    _weigh_(total, _all(rows), weights)
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
    squares = _squares(rows, _mean(rows, weights, reduce))
    count = squares.new_full((1,), len(rows))
    total = reduced(reduce, torch.cat([squares, count]))
    return total[:-1] / total[-1]


def _squares(rows: Float[Tensor, "m d"], center: Float[Tensor, "d"]) -> Float[Tensor, "d"]:
    """Σ_i (u − x_i)²."""
    if _at_once(_all(rows)):
        from partavg.kernels.sums import squares

        return squares(rows, center)
    return torch.cat([(block - mean).square_().sum(0) for block, mean in _blocks(rows, center)])


def _blocks(
    rows: Float[Tensor, "m d"], row: Float[Tensor, "d"]
) -> Iterator[tuple[Float[Tensor, "m _"], Float[Tensor, "_"]]]:
    """Some columns at a time, so that what is made of them needs little memory."""
    width = max(1, _BLOCK // len(rows))
    return zip(torch.split(rows, width, 1), torch.split(row, width), strict=True)


def _all(rows: Float[Tensor, "m d"]) -> Slices:
    return Slices(rows, (Span(0, rows.shape[1]),))


def per_part(
    columns: Float[Tensor, "d"], owners: Int[Tensor, "d"], parts: int
) -> Float[Tensor, "p"]:
    """Sum a value per column over the columns of each part, but not over local columns."""
    return columns.new_zeros(parts + 1).index_add_(0, owners, columns)[:parts]
