"""What the server and all clients must agree on, and what a message is made of."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from partavg.core.average import alone, collect, deliver_
from partavg.core.layout import Layout
from partavg.core.partition import Span
from partavg.core.plan import Plan
from partavg.core.solver import Solver
from partavg.core.workers import Workers
from partavg.engines.model import RowModel

Piece = tuple[int, tuple[Span, ...]]
"""A part, and the columns of buffers that go with it."""


@dataclass(frozen=True)
class Terms:
    """The model, what is averaged when, and the solver: the same for all."""

    model: RowModel
    plan: Plan
    solver: Solver

    def begin(self) -> Workers:
        """One worker with the model as it was given."""
        params, buffers = (row[None] for row in self.model.start())
        parts = len(self.plan.partition.parts)
        return Workers.start(params, buffers, self.model.params, self.solver, parts)

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """The solver's memory that is the same on all workers; a row per worker is the client's."""
        two = torch.empty(2, self._sizes[0], dtype=self.model.dtype, device="meta")
        memory = self.solver.init(two, self.model.params)
        return tuple(sorted(name for name, tensor in memory.items() if len(tensor) == 1))

    @cached_property
    def sends_parameters(self) -> bool:
        """Whether messages begin with the parameters themselves, so that models can be compared."""
        layout = Layout(("probe",), ((1,),))
        one = torch.ones(1, 1, dtype=self.model.dtype)
        probe = Workers.start(one, one[:, :0], layout, self.solver, 1)
        return bool(self.solver.encode(one, probe.memory, probe.sync(0))[0, 0] == 1)

    @cached_property
    def buffer_spans(self) -> tuple[Span, ...]:
        """All columns of buffers that are ever averaged."""
        return tuple(sorted({span for part in self.plan.buffer_parts for span in part}))

    @cached_property
    def _blank(self) -> Workers:
        """A worker without numbers, to learn the lengths of its messages."""
        params, buffers = (
            torch.empty(1, n, dtype=self.model.dtype, device="meta") for n in self._sizes
        )
        parts = len(self.plan.partition.parts)
        return Workers.start(params, buffers, self.model.params, self.solver, parts)

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.model.params.size, self.model.buffers.size

    def lengths(self, piece: Piece) -> list[int]:
        """How many numbers each span of a piece takes in a message, then each of its buffers."""
        return [len(found) for found in _encoded(self, self._blank, piece)]

    def length(self, kind: str, part: int) -> int:
        """How many numbers a message has."""
        return sum(sum(self.lengths(piece)) for piece in self.pieces(kind, part))

    def common_length(self, part: int | None = None) -> int:
        """How many numbers a snapshot has: of a part, or of all."""
        return sum(view.shape[1] for view in _common(self, self._blank, part))

    @property
    def model_length(self) -> int:
        """How many numbers a model has, with all that is ever averaged."""
        return self.model.params.size + sum(stop - start for start, stop in self.buffer_spans)

    def digest(self) -> str:
        """A fingerprint that must be equal on the server and all clients."""
        layouts = (self.model.params, self.model.buffers)
        plan = (self.plan.schedule, self.plan.partition.digest(), self.plan.buffer_parts)
        agreed = (layouts, str(self.model.dtype), plan, self.solver)
        return hashlib.sha256(repr(agreed).encode()).hexdigest()[:32]

    def pieces(self, kind: str, part: int) -> list[Piece]:
        """What a message is about: a "part", or the "rest" that was not averaged along with it."""
        buffers = self.plan.buffer_parts
        if kind == "part":
            return [(part, buffers[part])]
        known, pieces = set(buffers[part]), []
        for other in range(len(buffers)):
            if other != part:
                fresh = tuple(span for span in buffers[other] if span not in known)
                known.update(fresh)
                pieces.append((other, fresh))
        return pieces


def encode(terms: Terms, workers: Workers, pieces: Sequence[Piece]) -> Tensor:
    """What a worker sends about some pieces, as one flat array."""
    found = [part for piece in pieces for part in _encoded(terms, workers, piece)]
    return torch.cat(found) if found else workers.params.new_empty(0)


def decode_(
    terms: Terms, workers: Workers, pieces: Sequence[Piece], total: Tensor, share: float
) -> None:
    """Give a worker the weighted sum of all workers' messages."""
    for piece in pieces:
        part, buffer_spans = piece
        spans = terms.plan.partition.parts[part]
        lengths = terms.lengths(piece)
        own, total = total[: sum(lengths)], total[sum(lengths) :]
        columns = _columns(workers, spans, buffer_spans)
        sync = workers.sync(part, share)
        totals = torch.split(own, lengths)
        deliver_(columns, totals, workers.memory, spans, solver=terms.solver, sync=sync)
        _averaged(workers, part)


def snapshot(terms: Terms, workers: Workers, part: int | None = None) -> Tensor:
    """What all workers have in common, or had when it was last averaged: of a part, or of all."""
    return torch.cat([view.reshape(-1) for view in _common(terms, workers, part)])


def restore_(terms: Terms, workers: Workers, flat: Tensor, part: int | None = None) -> None:
    """Take over what `snapshot` gave; what belongs to the worker alone stays."""
    views = _common(terms, workers, part)
    for view, values in zip(views, torch.split(flat, [v.shape[1] for v in views]), strict=True):
        view.copy_(values)
    for averaged in range(workers.steps.shape[1]) if part is None else (part,):
        _averaged(workers, averaged)


def parameters(terms: Terms, piece: Piece, message: Tensor) -> Tensor:
    """The parameters in a message about one piece, where it `sends_parameters`."""
    spans = terms.plan.partition.parts[piece[0]]
    found = torch.split(message, terms.lengths(piece))
    return torch.cat([one[: b - a] for one, (a, b) in zip(found, spans, strict=False)])


def _encoded(terms: Terms, workers: Workers, piece: Piece) -> list[Tensor]:
    part, buffer_spans = piece
    return collect(
        workers.params,
        workers.memory,
        workers.buffers,
        terms.plan.partition.parts[part],
        buffer_spans,
        solver=terms.solver,
        sync=workers.sync(part),
        weights=workers.params.new_ones(1),
        reduce=alone,
    )


def _common(terms: Terms, workers: Workers, part: int | None) -> list[Tensor]:
    if part is None:
        spans: tuple[Span, ...] = (Span(0, workers.params.shape[1]),)
        buffer_spans = terms.buffer_spans
    else:
        spans, buffer_spans = terms.plan.partition.parts[part], terms.plan.buffer_parts[part]
    memory = [workers.memory[name][:, a:b] for name in terms.shared for a, b in spans]
    return _columns(workers, spans, buffer_spans) + memory


def _columns(workers: Workers, spans: Sequence[Span], buffer_spans: Sequence[Span]) -> list[Tensor]:
    params = [workers.params[:, a:b] for a, b in spans]
    return params + [workers.buffers[:, a:b] for a, b in buffer_spans]


def _averaged(workers: Workers, part: int) -> None:
    workers.steps[:, part] = 0
    workers.lr_sum[:, part] = 0
