"""Messages far outside of all that came so far are left out, and no such average is made."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import NamedTuple

import torch
from torch import Tensor

from partavg.core.workers import Workers
from partavg.flower.protocol import Agreement, Section, whole_model

Changes = dict[str, list[float]]
"""How far each piece moved in its last averages."""

_YOUNG = 5  # averages; before so many nothing is usual yet
_REMEMBERED = 20


class Implausible(RuntimeError):
    """An average would be far outside of all before it; nothing of it is saved."""


class Piece(NamedTuple):
    """A piece of a message: columns, and where they should be about."""

    name: str
    columns: slice
    center: Tensor

    def distance(self, message: Tensor) -> float:
        """How far from there a message is."""
        return float((message[self.columns].to(torch.float64) - self.center).norm())


@dataclass(frozen=True, slots=True)
class Plausible:
    """Judges messages by how far earlier averages moved.

    A piece may be `factor` times as far out as usual, by the median of its last averages. It may
    also move by as much as it is long, and each number by 1; while it is young, `factor` times.
    """

    pieces: Sequence[Piece]
    changes: Changes
    factor: float

    def outliers(self, messages: Mapping[int, Tensor]) -> dict[int, str]:
        """The clients whose messages are too far out, and how far."""
        found: dict[int, str] = {}
        for piece in self.pieces if self.factor else ():
            distances = {c: piece.distance(message) for c, message in messages.items()}
            limit = self._limit(piece, list(distances.values()))
            for client, distance in distances.items():
                if not distance <= limit:
                    found[client] = (
                        f"its message is {distance:.3g} away from the average before, and "
                        f"flower.max_change = {self.factor:g} allows {limit:.3g}"
                    )
        return found

    def check(self, total: Tensor, messages: Mapping[int, Tensor]) -> None:
        """Raise an Implausible for what was made of messages, if it is too far out."""
        if not bool(total.isfinite().all()):
            raise Implausible(f"the average is not finite ({self._farthest(messages)})")
        for piece in self.pieces if self.factor else ():
            limit = self._limit(piece, [piece.distance(m) for m in messages.values()])
            distance = piece.distance(total)
            if distance > limit:
                raise Implausible(
                    f"the average is {distance:.3g} away from the one before, and "
                    f"flower.max_change = {self.factor:g} allows {limit:.3g} "
                    f"({self._farthest(messages)})"
                )

    def remember_(self, total: Tensor) -> None:
        """An average was made."""
        for piece in self.pieces:
            past = self.changes.setdefault(piece.name, [])
            past.append(piece.distance(total))
            del past[:-_REMEMBERED]

    def _limit(self, piece: Piece, distances: Sequence[float]) -> float:
        past = self.changes.get(piece.name, [])
        scale = float(piece.center.norm()) + math.sqrt(len(piece.center))
        limit = scale if len(past) >= _YOUNG else self.factor * scale
        if past:
            limit = max(limit, self.factor * median(past))
        elif "buffers" in piece.name and distances:  # statistics begin anywhere, but together
            limit = max(limit, self.factor * median_low(distances))
        return limit

    def _farthest(self, messages: Mapping[int, Tensor]) -> str:
        far = {c: sum(p.distance(m) for p in self.pieces) for c, m in messages.items()}
        worst = sorted(far, key=lambda client: -far[client])[:3]
        return "farthest out: " + ", ".join(f"client {c} by {far[c]:.3g}" for c in worst)


def pieces(agreement: Agreement, mirror: Workers, sections: Sequence[Section]) -> list[Piece]:
    """The pieces of a message about some sections: parameters and what goes with them, buffers."""
    found, at = [], 0
    for section in sections:
        spans = agreement.plan.partition.parts[section.part]
        lengths = agreement.section_lengths(section)
        width = sum(lengths) - sum(b - a for a, b in section.buffers)
        center = torch.zeros(width, dtype=torch.float64)
        begin = 0
        for (a, b), length in zip(spans, lengths, strict=False):
            if agreement.sends_parameters:
                center[begin : begin + b - a] = mirror.params[0, a:b]
            begin += length
        found.append(Piece(f"part {section.part}", slice(at, at + width), center))
        at += width
        if section.buffers:
            kept = torch.cat([mirror.buffers[0, a:b] for a, b in section.buffers]).double()
            columns = slice(at, at + len(kept))
            found.append(Piece(f"buffers of part {section.part}", columns, kept))
            at += len(kept)
    return found


def model_pieces(agreement: Agreement, mirror: Workers) -> list[Piece]:
    """The pieces of a whole model."""
    center = whole_model(mirror, agreement).double()
    width = sum(b - a for a, b in agreement.param_spans)
    found = [Piece("model", slice(0, width), center[:width])]
    if len(center) > width:
        found.append(Piece("buffers of the model", slice(width, len(center)), center[width:]))
    return found
