"""Averages over workers and the distance from them."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.abilities import abilities
from partavg.core.joined import are_narrow, gathered, in_one_block
from partavg.core.partition import Span
from partavg.core.reduce import Arriving, Reduce, alone, reduced
from partavg.core.solver import Solver, State, Sync
from partavg.core.views import Slices, Views, spread_, squares, weigh_, widths

Combine = Callable[[Tensor, Tensor], Tensor]
"""(messages [m, l] and weights [m] of all workers) -> one message [l]."""
Rounding = Callable[[Tensor, Tensor, int], Tensor]
"""(the same, and how many numbers may be rounded: the first) -> their weighted sum [l]."""


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
    rounding: Rounding | None = None,
) -> tuple[Arriving, list[int]]:
    """The weighted sums of all workers' messages about a part in one reduction, and their lengths.

    `params` are the columns of the spans. Where the message is the parameters themselves, only
    their weighted sum, one row, is new. To `combine` messages in another way they are collected.
    Sums have the type of the weights; they are rounded when they are delivered. Where they are to
    be `exact` no number is rounded on its way; buffers and what workers tell never are. A
    `rounding` is one that is simulated: a backend may have its own.
    """
    said = abilities(solver)
    encoded, own = params, widths(params)
    if not said.plain:
        encoded, own = _encoded(params, state, spans, solver, sync)
    if said.tells:
        encoded = [*encoded, said.tells(sync).to(weights.dtype)]
        own = [*own, encoded[-1].shape[1]]
    others = widths(buffers)
    if combine is not None:
        return _combined([*encoded, *buffers], weights, reduce, combine), own + others
    middle, end = sum(own), sum(own) + sum(others)
    told = own[-1] if said.tells else 0
    if rounding is not None and not exact:
        rows = reduce.gather(torch.cat([*encoded, *buffers, weights[:, None]], 1))()
        total = rounding(rows[:, :-1], rows[:, -1], middle - told)
        return (lambda: total), own + others
    message = weights.new_empty(end + reduce.room)
    weigh_(message[:middle], encoded, weights)
    weigh_(message[middle:end], buffers, weights)
    return reduce(message, key, exact=end if exact else end - middle + told), own + others


def _encoded(
    params: Views, state: State, spans: Sequence[Span], solver: Solver, sync: Sync
) -> tuple[list[Tensor], list[int]]:
    """What a solver sends, one after another, and how much of it is about each span."""
    if are_narrow(params):
        block = solver.encode(*gathered(params, state, spans), sync)
        if block.shape[1] == sum(widths(params)):  # a number a column, whatever it is cut into
            return [block], widths(params)
    encoded = [
        solver.encode(rows, {k: v[:, a:b] for k, v in state.items()}, sync)
        for rows, (a, b) in zip(params, spans, strict=True)
    ]
    return encoded, widths(encoded)


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
        spread_(params, total[: sum(own[: len(spans)])])
    else:
        pieces = torch.split(total[:middle], own)
        if said.tells:
            sync = sync._replace(told=pieces[-1])
        _decode_(params, pieces[: len(spans)], state, spans, solver, sync)
    spread_(buffers, total[middle:])


def _decode_(
    params: Views,
    pieces: Sequence[Tensor],
    state: State,
    spans: Sequence[Span],
    solver: Solver,
    sync: Sync,
) -> None:
    """Let a solver make of the sums about each span what it does."""
    kind = next((entry.dtype for entry in state.values()), None)
    if are_narrow(params) and [len(piece) for piece in pieces] == widths(params):
        with in_one_block(params, state, spans) as (rows, memory):
            solver.decode_(rows, torch.cat(list(pieces)).to(kind or rows.dtype), memory, sync)
        return
    for rows, piece, (a, b) in zip(params, pieces, spans, strict=True):
        memory = {k: v[:, a:b] for k, v in state.items()}
        solver.decode_(rows, piece.to(kind or rows.dtype), memory, sync)


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
    weigh_(total, Slices.all_of(rows), weights)
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
    apart = squares(rows, _mean(rows, weights, reduce))
    count = apart.new_full((1,), len(rows))
    total = reduced(reduce, torch.cat([apart, count]))
    return total[:-1] / total[-1]


def per_part(
    columns: Float[Tensor, "d"], owners: Int[Tensor, "d"], parts: int
) -> Float[Tensor, "p"]:
    """Sum a value per column over the columns of each part, but not over local columns."""
    return columns.new_zeros(parts + 1).index_add_(0, owners, columns)[:parts]
