"""The model that all ranks make together, for a look at it, and modules beside it."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from partavg.backends.distributed.collectives import Collective
from partavg.backends.distributed.columns import Columns
from partavg.backends.distributed.module_row import ModuleRow
from partavg.core.abilities import abilities, name_of
from partavg.core.average import collect, deliver_
from partavg.core.exchange import send
from partavg.core.mean import Mean
from partavg.core.partition import Span
from partavg.core.plan import Plan
from partavg.core.reduce import reduced
from partavg.core.solver import Solver
from partavg.solvers.drift import ANCHOR

_AT_ONCE = 1 << 24  # numbers of a message about another module


@contextmanager
def own_model_kept(row: ModuleRow, plan: Plan) -> Iterator[None]:
    """Whatever happens to the model in here, then it is what it was, to the bit."""
    shared = (
        plan.partition.parts,
        [_new_buffers(plan, part) for part in range(len(plan.buffer_parts))],
    )
    views = chain(*row.columns(*(list(chain(*spans)) for spans in shared)))
    kept = [(view, view.clone()) for view in views]
    try:
        yield
    finally:
        with torch.no_grad():
            for view, own in kept:
                view.copy_(own)


def average_model_(row: ModuleRow, plan: Plan, collective: Collective) -> None:
    """Give the module the averages of all ranks, and nothing else: no rounding, no solver."""
    plan = replace(plan, mix=None, fresh=None)
    for part, spans in enumerate(plan.partition.parts):
        buffers, sync = _new_buffers(plan, part), row.sync(part)
        columns = row.columns(spans, buffers)
        arriving, lengths = send(
            row, part, plan, Mean(), collective, sync=sync, buffers=buffers, exact=True
        )
        deliver_(*columns, arriving(), lengths, {}, spans, solver=Mean(), sync=sync)


def take_outer_model_(row: ModuleRow, plan: Plan) -> None:
    """Give the module the parameters from which outer steps go on, which all ranks know."""
    if row.store is not None:
        row.store.wait()
    for start, stop in chain(*plan.partition.parts):
        row.param_columns.view(Span(start, stop)).copy_(row.memory[ANCHOR][:, start:stop])


def average_buffers_(row: ModuleRow, plan: Plan, collective: Collective) -> None:
    """Give the module the averages of its buffers, those that are averaged at all."""
    spans = [span for part in range(len(plan.buffer_parts)) for span in _new_buffers(plan, part)]
    if spans:
        average_views_(list(row.columns((), spans)[1]), row, plan, collective)


def average_views_(
    views: Sequence[Tensor], row: ModuleRow, plan: Plan, collective: Collective
) -> None:
    """Give columns [1, _] the averages of all ranks."""
    plain, sync = Mean(), row.sync(0)
    spans = [Span(0, view.shape[1]) for view in views]
    arriving, lengths = collect(
        list(views), [], {}, spans, solver=plain, sync=sync, weights=plan.weights_at(row.step),
        reduce=collective, exact=True,
    )  # fmt: skip
    deliver_(list(views), [], arriving(), lengths, {}, spans, solver=plain, sync=sync)


def average_module_(module: nn.Module, row: ModuleRow, plan: Plan, collective: Collective) -> None:
    """Average the parameters and buffers of another module, but for what is local to a rank."""
    columns = Columns(_tensors(module, row, plan), sharded=row.is_sharded)
    _check_same(columns, row, plan, collective)
    layout = columns.layout
    some: list[Tensor] = []
    size = 0  # of the whole tensors, since all ranks that hold one together must send as often
    for start, width in zip(layout.starts, layout.sizes, strict=True):
        if size and size + width > _AT_ONCE:
            average_views_(some, row, plan, collective)
            some, size = [], 0
        some += map(columns.view, columns.cut([Span(start, start + width)]))
        size += width
    average_views_(some, row, plan, collective)


def state_of(module: nn.Module, *, cpu: bool = False) -> dict[str, Any]:
    """A copy of a module's state dict."""
    return {
        name: value.detach().to("cpu" if cpu else value.device, copy=True)
        if isinstance(value, Tensor)
        else value
        for name, value in module.state_dict().items()
    }


def _new_buffers(plan: Plan, part: int) -> tuple[Span, ...]:
    """The buffers of a part that do not go with one before it already."""
    known = set(chain(*plan.buffer_parts[:part]))
    return tuple(span for span in plan.buffer_parts[part] if span not in known)


def _tensors(module: nn.Module, row: ModuleRow, plan: Plan) -> dict[str, Callable[[], Tensor]]:
    """What of a module has a mean and is shared; a copy of torch's calls the model its module."""
    averages_buffers = any(plan.buffer_parts) or not row.buffer_columns.layout.size
    return {
        name: tensor.detach
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor) and tensor.is_floating_point()
        if name.removeprefix("module.") not in row.local
        if averages_buffers or isinstance(tensor, nn.Parameter)
    }


def check_outer(solver: Solver, row: ModuleRow) -> None:
    """Raise a ValueError where there is no outer model."""
    if not abilities(solver).outer_step or ANCHOR not in row.memory:
        raise ValueError(
            f"solver {name_of(solver)} takes no outer steps, so that there is no outer model: "
            f"leave outer=True out, or attach with partavg.Outer"
        )


def _check_same(columns: Columns, row: ModuleRow, plan: Plan, collective: Collective) -> None:
    """Raise a ValueError on all ranks where they gave different modules."""
    digest = hashlib.sha256(repr(columns.layout).encode()).hexdigest()
    number = int(digest[:5], 16)
    own = plan.weights_at(row.step).double() * torch.tensor(
        [number, number**2], dtype=torch.float64, device=row.params.device
    )
    mean, square = reduced(collective, own).tolist()
    if abs(square - mean**2) > 0.01:
        raise ValueError(
            "the modules to average have other tensors on some ranks: give all ranks the same kind"
        )
