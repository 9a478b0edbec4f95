"""Averages over workers and the distance from them."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.partition import Span
from partavg.core.solver import Solver, State, Sync, plain
from partavg.kernels.backend import uses_triton

Reduce = Callable[[Tensor], Tensor]
"""Sum over this process's workers [l] -> sum over all workers [l]: all that a backend adds."""

_BLOCK, _BLOCK_ON_GPU = 1 << 20, 1 << 26  # elements of scratch memory for a pass over [m, d]


def alone(total: Tensor) -> Tensor:
    """The Reduce of a process that holds all workers."""
    return total


def collect(
    params: Float[Tensor, "m d"],
    state: State,
    buffers: Float[Tensor, "m b"],
    spans: Sequence[Span],
    buffer_spans: Sequence[Span],
    *,
    solver: Solver,
    sync: Sync,
    weights: Float[Tensor, "m"],
    reduce: Reduce,
) -> list[Tensor]:
    """The weighted sums of all workers' messages about a part, span by span, in one reduction.

    The workers' columns are views: where the message is the parameters themselves, only their
    weighted sum, one row, is new.
    """
    if at_once(params, solver):
        return _collect_at_once(params, buffers, spans, buffer_spans, weights, reduce)
    parts = [(params[:, a:b], {k: v[:, a:b] for k, v in state.items()}) for a, b in spans]
    encoded = [solver.encode(rows, memory, sync) for rows, memory in parts]
    encoded += [buffers[:, a:b] for a, b in buffer_spans]
    lengths = [rows.shape[1] for rows in encoded]
    message = params.new_empty(1, sum(lengths))
    for rows, piece in zip(encoded, torch.split(message, lengths, 1), strict=True):
        torch.mm(weights[None], rows, out=piece)  # on a CPU in half the time of weights @ rows
    return list(torch.split(reduce(message[0]), lengths))


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


def at_once(params: Float[Tensor, "m d"], solver: Solver) -> bool:
    """Whether all spans of a part are averaged by one kernel: on a GPU, where nothing else is due.

    There a kernel for each span would cost more than the sums.
    """
    return plain(solver) and params.dtype == torch.float32 and uses_triton(params)


def deliver_at_once_(
    params: Float[Tensor, "m d"],
    buffers: Float[Tensor, "m b"],
    totals: Sequence[Tensor],
    spans: Sequence[Span],
    buffer_spans: Sequence[Span],
) -> None:
    """Give the sums that `collect` made to all workers."""
    from partavg.kernels.sums import spread_

    spread_(params, totals[0], spans)  # they lie one after another
    if buffer_spans:
        spread_(buffers, totals[len(spans)], buffer_spans)


def _collect_at_once(
    params: Tensor,
    buffers: Tensor,
    spans: Sequence[Span],
    buffer_spans: Sequence[Span],
    weights: Tensor,
    reduce: Reduce,
) -> list[Tensor]:
    """What `collect` does, in one kernel for the parameters and one for the buffers."""
    from partavg.kernels.sums import weigh_

    own, beside = ([b - a for a, b in some] for some in (spans, buffer_spans))
    message = params.new_empty(sum(own) + sum(beside))
    weigh_(message[: sum(own)], params, weights, spans)
    if beside:
        weigh_(message[sum(own) :], buffers, weights, buffer_spans)
    return list(torch.split(reduce(message), own + beside))


def consensus(
    rows: Float[Tensor, "m d"], weights: Float[Tensor, "m"], reduce: Reduce = alone
) -> Float[Tensor, "d"]:
    """The averaged model u = Σ p_i x_i."""
    return reduce((weights[None] @ rows)[0])


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
    width = max(1, (_BLOCK_ON_GPU if rows.is_cuda else _BLOCK) // len(rows))
    blocks = zip(torch.split(rows, width, 1), torch.split(center, width), strict=True)
    squares = [(block - mean).square_().sum(0) for block, mean in blocks]
    ones = torch.ones(1, dtype=rows.dtype, device=rows.device) * len(rows)
    total = reduce(torch.cat([*squares, ones]))
    return total[:-1] / total[-1]


def per_part(
    columns: Float[Tensor, "d"], owners: Int[Tensor, "d"], parts: int
) -> Float[Tensor, "p"]:
    """Sum a value per column over the columns of each part."""
    return columns.new_zeros(parts).index_add_(0, owners, columns)
