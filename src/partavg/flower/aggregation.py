"""What the server makes of the clients' messages: the plan's Aggregate, section by section."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from partavg.core.aggregate import one_message, weighted_sum
from partavg.core.exchange import about
from partavg.core.reduce import accumulating
from partavg.core.workers import Workers
from partavg.flower.protocol import Agreement, Section, whole_model

Messages = Mapping[int, Tensor]
"""From each client a flat array, all of one length."""


def aggregated(
    messages: Messages,
    weights: Mapping[int, float],
    agreement: Agreement,
    mirror: Workers,
    sections: Sequence[Section],
    step: int,
) -> Tensor:
    """One message of all clients' messages about some sections."""
    if agreement.plan.aggregate is weighted_sum:
        return _sum(messages, weights)
    rows, shares = _stacked(messages, weights)
    lengths = [sum(agreement.section_lengths(section)) for section in sections]
    plan, solver = agreement.plan, agreement.solver
    return torch.cat(
        [
            one_message(
                plan.aggregate, block, shares, about(mirror.params[0], s.part, step, plan, solver)
            )
            for s, block in zip(sections, torch.split(rows, lengths, 1), strict=True)
        ]
    ).to(agreement.model.dtype)


def aggregated_model(
    models: Messages,
    weights: Mapping[int, float],
    agreement: Agreement,
    mirror: Workers,
    step: int,
    *,
    but: int | None,
) -> Tensor:
    """One model of all clients' whole models, part by part.

    A part that all have in common already is the mirror's: no client can change it any more.
    """
    if agreement.plan.aggregate is weighted_sum:
        return _sum(models, weights)
    rows, shares = _stacked(models, weights)
    plan, made = agreement.plan, whole_model(mirror, agreement)
    width = sum(plan.partition.sizes)
    known = set[int]() if but is None else set(agreement.buffer_columns(but, after=width))
    for part in range(len(plan.partition.parts)):
        if part == but:
            continue
        columns = agreement.param_columns(part)
        kept = [c for c in agreement.buffer_columns(part, after=width) if c not in known]
        known.update(kept)
        told = about(mirror.params[0], part, step, plan, agreement.solver)
        told = told._replace(places=(slice(0, len(columns)),))
        mine = torch.cat([columns, torch.tensor(kept, dtype=torch.long)])
        made[mine] = one_message(plan.aggregate, rows[:, mine], shares, told).to(made.dtype)
    return made


def _sum(messages: Messages, weights: Mapping[int, float]) -> Tensor:
    """Σ p_i m_i, added in the order of the clients and without a copy of all messages."""
    first = next(iter(messages.values()))
    total = torch.zeros_like(first, dtype=accumulating(first.dtype))
    for client, message in messages.items():
        total.add_(message, alpha=weights[client])
    return total.to(first.dtype)


def _stacked(messages: Messages, weights: Mapping[int, float]) -> tuple[Tensor, Tensor]:
    rows = torch.stack(list(messages.values()))
    rows = rows.to(accumulating(rows.dtype))
    return rows, rows.new_tensor([weights[client] for client in messages])
