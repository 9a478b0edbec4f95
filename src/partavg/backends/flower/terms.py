"""What the server and all clients must agree on, and what a message is made of."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

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
        memory = self._probe(2, 1).memory
        return tuple(sorted(name for name, tensor in memory.items() if len(tensor) == 1))

    @cached_property
    def sends_parameters(self) -> bool:
        """Whether messages begin with the parameters themselves, so that models can be compared."""
        return bool(self._encoded_probe(1)[0, 0] == 1)

    @cached_property
    def buffer_spans(self) -> tuple[Span, ...]:
        """All columns of buffers that are ever averaged."""
        return tuple(sorted({span for part in self.plan.buffer_parts for span in part}))

    def lengths(self, piece: Piece) -> list[int]:
        """How many numbers each span of a piece takes in a message, then each of its buffers."""
        part, buffer_spans = piece
        each, beside = self._rate
        spans = [each * (b - a) + beside for a, b in self.plan.partition.parts[part]]
        return spans + [b - a for a, b in buffer_spans]

    def length(self, kind: str, part: int) -> int:
        """How many numbers a message has."""
        return sum(sum(self.lengths(piece)) for piece in self.pieces(kind, part))

    def common_length(self, part: int | None = None) -> int:
        """How many numbers a snapshot has: of a part, or of all."""
        if part is None:
            return self.model_length + len(self.shared) * self.model.params.size
        columns = self.plan.partition.sizes[part]
        return columns * (1 + len(self.shared)) + _width(self.plan.buffer_parts[part])

    @property
    def model_length(self) -> int:
        """How many numbers a model has, with all that is ever averaged."""
        return self.model.params.size + _width(self.buffer_spans)

    @cached_property
    def _rate(self) -> tuple[int, int]:
        """Numbers in a message per column, and beside: solvers treat each column by itself."""
        one, two = (self._encoded_probe(width).shape[1] for width in (1, 2))
        return two - one, 2 * one - two

    def _encoded_probe(self, width: int) -> Tensor:
        probe = self._probe(1, width)
        return self.solver.encode(probe.params, probe.memory, probe.sync(0))

    def _probe(self, rows: int, width: int) -> Workers:
        """Workers with a tiny model, to learn about the solver."""
        ones = torch.ones(rows, width, dtype=self.model.dtype)
        return Workers.start(ones, ones[:, :0], Layout(("probe",), ((width,),)), self.solver, 1)

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
    found = [_encoded(terms, workers, piece) for piece in pieces]
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
        columns = workers.columns(spans, buffer_spans)
        sync = workers.sync(part, share)
        deliver_(*columns, own, lengths, workers.memory, spans, solver=terms.solver, sync=sync)
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


def _encoded(terms: Terms, workers: Workers, piece: Piece) -> Tensor:
    part, buffer_spans = piece
    spans = terms.plan.partition.parts[part]
    message, _ = collect(
        *workers.columns(spans, buffer_spans),
        workers.memory,
        spans,
        solver=terms.solver,
        sync=workers.sync(part),
        weights=workers.params.new_ones(1),
        reduce=alone,
    )
    return message()


def _common(terms: Terms, workers: Workers, part: int | None) -> list[Tensor]:
    if part is None:
        spans: tuple[Span, ...] = (Span(0, workers.params.shape[1]),)
        buffer_spans = terms.buffer_spans
    else:
        spans, buffer_spans = terms.plan.partition.parts[part], terms.plan.buffer_parts[part]
    memory = [workers.memory[name][:, a:b] for name in terms.shared for a, b in spans]
    return [*chain(*workers.columns(spans, buffer_spans)), *memory]


def _width(spans: Sequence[Span]) -> int:
    return sum(stop - start for start, stop in spans)


def _averaged(workers: Workers, part: int) -> None:
    workers.steps[:, part] = 0
    workers.lr_sum[:, part] = 0
