"""How the columns of a model are cut into the parts that are averaged together."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.arguments import check_whole
from partavg.sentences import shown


class Span(NamedTuple):
    """The half-open range of columns [start, stop).

    >>> Span(0, 3)
    Span(start=0, stop=3)
    """

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Partition:
    """Disjoint parts that together cover the columns 0 … size exactly once.

    Columns that are `local` belong to no part: they are never averaged.

    >>> Partition(5, ((Span(0, 2),), (Span(2, 5),))).sizes
    (2, 3)
    """

    size: int
    parts: tuple[tuple[Span, ...], ...]
    local: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        check_whole("size", self.size, 0)
        column = 0
        for start, stop in sorted(_spans(self.parts, self.local)):
            if start != column or stop <= start:
                raise ValueError(
                    f"the parts do not cover each column exactly once: "
                    f"expected a span that starts at {column}, found [{start}, {stop})"
                )
            column = stop
        if column != self.size:
            raise ValueError(f"the parts cover {column} of {self.size} columns: cover all of them")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of columns in each part."""
        return tuple(sum(stop - start for start, stop in part) for part in self.parts)

    def owners(self) -> Int[Tensor, "d"]:
        """The part that each column belongs to; of local columns as many as there are parts."""
        owners = torch.full((self.size,), len(self.parts))
        for part, spans in enumerate(self.parts):
            for start, stop in spans:
                owners[start:stop] = part
        return owners

    def digest(self) -> str:
        """A fingerprint that must be equal on every worker before training starts."""
        return hashlib.sha256(repr((self.size, self.parts)).encode()).hexdigest()


def module_of(name: str) -> str:
    """The module a tensor belongs to: `block.1.conv` for `block.1.conv.weight`."""
    return name.rpartition(".")[0]


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sort the spans, drop the empty ones and join those that touch."""
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.stop > span.start):
        if merged and merged[-1].stop == span.start:
            merged[-1] = Span(merged[-1].start, span.stop)
        else:
            merged.append(span)
    return tuple(merged)


def without(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """What of the spans is in none of the others.

    >>> without([Span(0, 4), Span(6, 9)], [Span(1, 2), Span(5, 7)])
    (Span(start=0, stop=1), Span(start=2, stop=4), Span(start=7, stop=9))
    """
    left = tuple(spans)
    for start, stop in others:
        pieces = (((a, min(b, start)), (max(a, stop), b)) for a, b in left)
        left = tuple(Span(a, b) for both in pieces for a, b in both if a < b)
    return left


def _spans(parts: Any, local: Any) -> Iterator[tuple[int, int]]:
    """All spans, which must be pairs of whole numbers."""
    for part in (*parts, local) if isinstance(parts, tuple | list) else (parts,):
        for span in part if isinstance(part, tuple | list) else (part,):
            try:
                start, stop = span
            except (TypeError, ValueError):
                raise ValueError(
                    f"parts hold {shown(span)}: give each as a tuple of partavg.Span(start, stop)"
                ) from None
            check_whole("a span's start", start)
            check_whole("a span's stop", stop)
            yield start, stop
