"""What the server and all clients must agree on, and what a message is made of."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from partavg.core.abilities import abilities, described
from partavg.core.average import collect, deliver_
from partavg.core.partition import Span, merged
from partavg.core.plan import Plan
from partavg.core.reduce import accumulating, alone
from partavg.core.solver import Solver
from partavg.core.trial import MessageLength, message_length, sends_parameters, shared_names
from partavg.core.workers import Workers
from partavg.engines.model import RowModel
from partavg.flower.messages import Order
from partavg.own_version import own_version


def minor(full: str) -> str:
    """The minor version in a full one: patches of it change nothing but defects.

    >>> minor("0.2.1")
    '0.2'
    """
    return ".".join(full.split(".")[:2])


class Section(NamedTuple):
    """A section of a message: it is about one part, and the buffers that go with it."""

    part: int
    buffers: tuple[Span, ...]


@dataclass(frozen=True)
class Agreement:
    """The model, what is averaged when, and the solver: the same for all."""

    model: RowModel
    plan: Plan
    solver: Solver

    def start(self) -> Workers:
        """One worker with the model as it was given."""
        params, buffers = (row[None] for row in self.model.start())
        parts = len(self.plan.partition.parts)
        return Workers.start(params, buffers, self.model.params, self.solver, parts)

    def digest(self) -> str:
        """A fingerprint that must be equal on the server and all clients."""
        layouts = (self.model.params, self.model.buffers)
        plan = (self.plan.schedule, self.plan.partition.digest(), self.plan.buffer_parts)
        agreed = f"({layouts!r}, {str(self.model.dtype)!r}, {plan!r}, {described(self.solver)})"
        if self.plan.private:
            told = asdict(self.plan.private)
            agreed += f" {[value for name, value in told.items() if name != 'draw']}"
        agreed += f" of partavg {minor(own_version())}"
        counted = self.model.whole_numbers().cpu().numpy().tobytes()
        return hashlib.sha256(agreed.encode() + counted).hexdigest()[:32]

    def sections(self, about: str, part: int) -> list[Section]:
        """A message about a "part", or about the "rest" that was not averaged along with it."""
        buffers = self.plan.buffer_parts
        if about == "part":
            return [Section(part, buffers[part])]
        known, sections = set(buffers[part]), []
        for other in range(len(buffers)):
            if other != part:
                fresh = tuple(span for span in buffers[other] if span not in known)
                known.update(fresh)
                sections.append(Section(other, fresh))
        return sections

    def brought_length(self, order: Order) -> int:
        """How many numbers come along with an order."""
        if order.bring in ("nothing", "noted"):
            return 0
        if order.bring == "sums":
            return self.message_length(order.about, order.part)
        if order.bring == "averages":
            return self.model_length
        return self.snapshot_length(order.part if order.bring == "part" else None)

    def sent_length(self, order: Order) -> int:
        """How many numbers an order asks for."""
        if order.send in ("nothing", "scores"):
            return 0
        if order.send == "model":
            return self.model_length
        bit = self.plan.private is not None and self.plan.private.quantile is not None
        return self.message_length(order.send, order.due) + bit

    def message_length(self, about: str, part: int) -> int:
        """How many numbers a message has, and the sums of such messages."""
        return sum(sum(self.section_lengths(section)) for section in self.sections(about, part))

    def section_lengths(self, section: Section) -> list[int]:
        """How many numbers each span of a section takes, what is told once, each of its buffers."""
        each, beside, once = self._lengths
        spans = [each * (b - a) + beside for a, b in self.plan.partition.parts[section.part]]
        return spans + [once] * bool(once) + [b - a for a, b in section.buffers]

    def snapshot_length(self, part: int | None = None) -> int:
        """How many numbers a snapshot has: of a part, or of all."""
        counts = len(self.counted(part))
        if part is None:
            return self.model_length + len(self.shared) * _width(self.param_spans) + counts
        columns = self.plan.partition.sizes[part]
        return columns * (1 + len(self.shared)) + _width(self.plan.buffer_parts[part]) + counts

    def counted(self, part: int | None) -> list[int]:
        """The parts whose outer steps are told in a snapshot: of a part, or of all."""
        if not abilities(self.solver).outer_step:
            return []
        return list(range(self.plan.schedule.parts)) if part is None else [part]

    @property
    def model_length(self) -> int:
        """How many numbers a model has, with all that is ever averaged."""
        return _width(self.param_spans) + _width(self.buffer_spans)

    @cached_property
    def param_spans(self) -> tuple[Span, ...]:
        """All columns of parameters that are ever averaged; what is local never leaves a client."""
        return merged(chain(*self.plan.partition.parts))

    @cached_property
    def buffer_spans(self) -> tuple[Span, ...]:
        """All columns of buffers that are ever averaged."""
        return tuple(sorted({span for part in self.plan.buffer_parts for span in part}))

    def buffer_columns(self, part: int, after: int) -> list[int]:
        """Where the buffers of a part lie in a whole model, after so many parameters."""
        places, at = {}, after
        for span in self.buffer_spans:
            places[span] = range(at, at := at + span.stop - span.start)
        return [column for span in self.plan.buffer_parts[part] for column in places[span]]

    def param_columns(self, part: int) -> Tensor:
        """Where the parameters of a part lie in a whole model."""
        places = (self.plan.partition.owners() < len(self.plan.partition.parts)).cumsum(0) - 1
        return torch.cat([places[start:stop] for start, stop in self.plan.partition.parts[part]])

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """The solver's memory that is the same on all workers; a row per worker is the client's."""
        return tuple(sorted(shared_names(self.solver)))

    @cached_property
    def sends_parameters(self) -> bool:
        """Whether messages begin with the parameters themselves, so that models can be compared."""
        return sends_parameters(self.solver)

    @cached_property
    def _lengths(self) -> MessageLength:
        return message_length(self.solver)


def encode(workers: Workers, agreement: Agreement, sections: Sequence[Section]) -> Tensor:
    """What a worker sends about some sections, as one flat array."""
    found = [_encoded(workers, agreement, section) for section in sections]
    return torch.cat(found) if found else workers.params.new_empty(0)


def decode_(
    workers: Workers,
    agreement: Agreement,
    sections: Sequence[Section],
    total: Tensor,
    active_fraction: float,
) -> None:
    """Give a worker the weighted sum of all workers' messages."""
    for section in sections:
        spans = agreement.plan.partition.parts[section.part]
        lengths = agreement.section_lengths(section)
        own, total = total[: sum(lengths)], total[sum(lengths) :]
        columns = workers.columns(spans, section.buffers)
        sync = workers.sync(section.part, active_fraction)
        deliver_(*columns, own, lengths, workers.memory, spans, solver=agreement.solver, sync=sync)
        _reset_clock_(workers, section.part)
        if agreement.counted(section.part):
            workers.count_outer_step_(section.part)


def do_without_(
    workers: Workers, agreement: Agreement, sections: Sequence[Section], active_fraction: float
) -> None:
    """Let a worker note that sections were averaged of which it gets nothing, since it leaves.

    What belongs to it alone changes as if it did: no average is needed for that.
    """
    for section in sections:
        before = snapshot(workers, agreement, section.part)
        own = encode(workers, agreement, [section])
        decode_(workers, agreement, [section], own, active_fraction)
        restore_(workers, agreement, before, section.part)


def snapshot(workers: Workers, agreement: Agreement, part: int | None = None) -> Tensor:
    """What all workers have in common, or had when it was last averaged: of a part, or of all."""
    counts = [float(workers.sync(each).outer_steps - 1) for each in agreement.counted(part)]
    common = _joined(_common(workers, agreement, part), agreement.model.dtype)
    return torch.cat([common, common.new_tensor(counts)])


def restore_(workers: Workers, agreement: Agreement, flat: Tensor, part: int | None = None) -> None:
    """Take over what `snapshot` gave; what belongs to the worker alone stays."""
    counted = agreement.counted(part)
    end = len(flat) - len(counted)
    _fill_(_common(workers, agreement, part), flat[:end])
    for each, steps in zip(counted, flat[end:].tolist(), strict=True):
        workers.set_outer_steps_(each, int(steps))
    for averaged in range(workers.steps.shape[1]) if part is None else (part,):
        _reset_clock_(workers, averaged)


def whole_model(workers: Workers, agreement: Agreement) -> Tensor:
    """All parameters and buffers that are ever averaged: how a snapshot of all begins."""
    return _joined(_model(workers, agreement), agreement.model.dtype)


def set_model_(workers: Workers, agreement: Agreement, flat: Tensor) -> None:
    """Take over what `whole_model` gave."""
    _fill_(_model(workers, agreement), flat)


def parameters(message: Tensor, agreement: Agreement, section: Section) -> Tensor:
    """The parameters in a message of one section, where it `sends_parameters`."""
    spans = agreement.plan.partition.parts[section.part]
    found = torch.split(message, agreement.section_lengths(section))
    return torch.cat([one[: b - a] for one, (a, b) in zip(found, spans, strict=False)])


def _encoded(workers: Workers, agreement: Agreement, section: Section) -> Tensor:
    spans = agreement.plan.partition.parts[section.part]
    message, _ = collect(
        *workers.columns(spans, section.buffers),
        workers.memory,
        spans,
        solver=agreement.solver,
        sync=workers.sync(section.part),
        weights=workers.params.new_ones(1, dtype=accumulating(workers.params.dtype)),
        reduce=alone,
    )
    return message().to(workers.params.dtype)


def _common(workers: Workers, agreement: Agreement, part: int | None) -> list[Tensor]:
    if part is None:
        columns, spans = _model(workers, agreement), agreement.param_spans
    else:
        spans = agreement.plan.partition.parts[part]
        columns = [*chain(*workers.columns(spans, agreement.plan.buffer_parts[part]))]
    return columns + [workers.memory[name][:, a:b] for name in agreement.shared for a, b in spans]


def _model(workers: Workers, agreement: Agreement) -> list[Tensor]:
    return [*chain(*workers.columns(agreement.param_spans, agreement.buffer_spans))]


def _joined(views: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([view.reshape(-1).to(dtype) for view in views])


def _fill_(views: Sequence[Tensor], flat: Tensor) -> None:
    for view, values in zip(views, torch.split(flat, [v.shape[1] for v in views]), strict=True):
        view.copy_(values)


def _reset_clock_(workers: Workers, part: int) -> None:
    """Count from now on: the part was averaged."""
    workers.steps[:, part] = 0
    workers.lr_sum[:, part] = 0


def _width(spans: Sequence[Span]) -> int:
    return sum(stop - start for start, stop in spans)
