"""nn.LSTM for all workers and both directions at once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partavg.engines.fused import dispatch
from partavg.engines.fused.dispatch import Recurrent, device_of
from partavg.engines.fused.recurrent.reference import Ends
from partavg.engines.fused.rows import Rows


def covers(layer: Any) -> bool:
    """Whether nothing is projected, nor dropped between layers.

    There torch.lstm draws dropout from its own stream, not from a worker's key.
    """
    return bool(layer.proj_size == 0 and (layer.num_layers == 1 or layer.dropout == 0))


def run(
    layer: Any, rows: Rows, name: str, x: Tensor, start: Ends | None = None
) -> tuple[Tensor, Ends]:
    """The layer's outputs and last states, for x [m, n, t, e] or [m, t, n, e]."""
    weights = [rows.tensor_of(name, key) for key in weight_names(layer)]
    return lstm(layer, weights, x, start)


def weight_names(layer: nn.LSTM) -> list[str]:
    """The parameters in the order in which torch.lstm takes them, by their documented names."""
    ways = ("", "_reverse") if layer.bidirectional else ("",)
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if layer.bias else 2]
    numbers = range(layer.num_layers)
    return [f"{kind}_l{number}{way}" for number in numbers for way in ways for kind in kinds]


def lstm(
    layer: nn.LSTM,
    weights: Sequence[Tensor],
    x: Tensor,
    start: Ends | None,
) -> tuple[Tensor, Ends]:
    """What nn.LSTM returns for x [m, n, t, e] (or [m, t, n, e]); weights in the layer's order.

    Weights may be kept in another dtype than x, in which all is computed.
    """
    directions = 2 if layer.bidirectional else 1
    each = len(weights) // (layer.num_layers * directions)
    if start is None:
        count = x.shape[1 if layer.batch_first else 2]
        zeros = x.new_zeros(len(x), layer.num_layers * directions, count, layer.hidden_size)
        start = zeros, zeros
    read = _reader(x)
    ends: list[Ends] = []
    for number in range(layer.num_layers):
        first = number * directions
        own = [weights[i * each : (i + 1) * each] for i in range(first, first + directions)]
        into, recurrent, *biases = zip(*own, strict=True)
        added = [one + other for one, other in zip(*biases, strict=True)] if biases else []
        before = [s[:, first : first + directions] for s in start]
        x, *after = read(x, into, recurrent, added, *before, batch_first=layer.batch_first)
        ends.append((after[0], after[1]))
    hiddens, cells = (torch.cat(some, 1) for some in zip(*ends, strict=True))
    return x, (hiddens, cells)


def _reader(x: Tensor) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """What computes a layer of such numbers."""
    if dispatch.recurrent(x.dtype, device_of(x)) == Recurrent.TORCH:
        return _layer
    from partavg.engines.fused.recurrent import steps

    return steps.layer


def _layer(
    x: Tensor,
    into: Sequence[Tensor],
    recurrent: Sequence[Tensor],
    biases: Sequence[Tensor],
    hidden: Tensor,
    cell: Tensor,
    *,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer, with weights and biases of each direction: outputs, last states [m, d, n, h]."""
    x = x.transpose(1, 2) if batch_first else x  # [m, t, n, e]
    directions, workers, width = len(into), *into[0].shape[:2]
    steps, count = x.shape[1:3]
    both = torch.stack([x, x.flip(1)][:directions])  # [d, m, t, n, e]
    given = torch.bmm(both.flatten(2, 3).flatten(0, 1), _rows_of(into, x).transpose(1, 2))
    if biases:
        given = given + _rows_of(biases, x)[:, None]
    given = given.view(directions * workers, steps, count, width).transpose(0, 1)
    states = (state.transpose(0, 1).flatten(0, 1) for state in (hidden, cell))
    hiddens, last = Recurrence.apply(  # type: ignore[no-untyped-call]
        given, _rows_of(recurrent, x), *states
    )
    outputs = hiddens.view(steps, directions, workers, count, width // 4)
    ends = outputs[-1]
    ways = torch.cat([outputs[:, 0], outputs[:, -1].flip(0)][:directions], -1)
    x = ways.permute(1, 2, 0, 3) if batch_first else ways.transpose(0, 1)
    return x, ends.transpose(0, 1), last.view_as(ends).transpose(0, 1)


def _rows_of(each: Sequence[Tensor], x: Tensor) -> Tensor:
    """Parameters [m, …] of each direction as [d · m, …], as x is computed."""
    return torch.cat([tensor.to(x.dtype) for tensor in each])


class Recurrence(torch.autograd.Function):
    """The recurrence, with weights [b, 4h, h] and the inputs' share of the gates [t, b, n, 4h].

    Its own backward pass adds up the weights' gradient in one product at the end: autograd would
    add to all weights in every step.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor) -> Any:
        width = hidden.shape[-1]
        across = recurrent.transpose(1, 2)
        gates = torch.empty_like(given)
        hiddens = given.new_empty(len(given) + 1, *hidden.shape)
        cells = hiddens.new_empty(hiddens.shape, dtype=_wide(given.dtype))
        hiddens[0], cells[0] = hidden, cell
        for step, share in enumerate(given):
            raw = torch.baddbmm(share, hiddens[step], across)
            _forward_(raw, gates[step], cells[step], cells[step + 1], hiddens[step + 1], width)
        ctx.save_for_backward(recurrent, gates, hiddens, cells)
        return hiddens[1:].clone(), cells[-1].to(given.dtype)

    @staticmethod
    def backward(ctx: Any, outer: Tensor, last: Tensor) -> Any:
        recurrent, gates, hiddens, cells = ctx.saved_tensors
        width = hiddens.shape[-1]
        grads = torch.empty_like(gates)
        cell = last.to(cells.dtype).clone()
        hidden = torch.zeros_like(hiddens[0])
        for step in reversed(range(len(gates))):
            hidden = hidden + outer[step]
            _backward_(hidden, cell, gates[step], cells[step], cells[step + 1], grads[step], width)
            hidden = torch.bmm(grads[step], recurrent)
        steps_in = hiddens[:-1].transpose(0, 1).flatten(1, 2)  # [b, t · n, h]
        weight = torch.bmm(grads.transpose(0, 1).flatten(1, 2).transpose(1, 2), steps_in)
        return grads, weight, hidden, cell.to(gates.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Cell states add up over a whole text: 8 bits of mantissa are too few for them."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _forward_(
    raw: Tensor, gates: Tensor, before: Tensor, after: Tensor, hidden: Tensor, width: int
) -> None:
    """One step: gates [b, n, 4h] from raw ones, the cells after it, and the hidden states."""
    into, forget, new, out = torch.split(raw, width, -1)
    into, forget, out = into.sigmoid(), forget.sigmoid(), out.sigmoid()
    new = new.tanh()
    gates.copy_(torch.cat([into, forget, new, out], -1))
    after.copy_(forget * before + into * new)
    hidden.copy_(out * after.tanh())


def _backward_(
    hidden: Tensor,
    cell: Tensor,
    gates: Tensor,
    before: Tensor,
    after: Tensor,
    grads: Tensor,
    width: int,
) -> None:
    """One step back: the raw gates' gradients, and in `cell` that of the cells before it."""
    into, forget, new, out = torch.split(gates.to(cell.dtype), width, -1)
    tanh = after.tanh()
    cell.addcmul_(hidden * out, 1 - tanh.square())
    parts = [
        cell * new * into * (1 - into),
        cell * before * forget * (1 - forget),
        cell * into * (1 - new.square()),
        hidden * tanh * out * (1 - out),
    ]
    grads.copy_(torch.cat(parts, -1))
    cell.mul_(forget)
