"""Narrow columns gathered into one block, and put back.

A channel-wise part has a span in every tensor. On a GPU a solver that took one span after another
would wait for its own launches, not for numbers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeGuard

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.partition import Span
from partavg.core.solver import State
from partavg.core.views import Slices, Views, at_once

_FEW = 4  # spans that are taken one by one
_NARROW = 1 << 16  # columns of a span, in the mean: wider ones are no cheaper to gather


def are_narrow(columns: Views) -> TypeGuard[Slices]:
    """Whether columns are better gathered than taken span by span."""
    if not at_once(columns) or len(columns) <= _FEW:
        return False
    return sum(stop - start for start, stop in columns.spans) <= _NARROW * len(columns)


def gathered(
    columns: Slices, state: State, spans: Sequence[Span]
) -> tuple[Float[Tensor, "m n"], State]:
    """Copies of columns, and of a solver's memory of them, which lies at `spans`."""
    index = _index(tuple(spans), columns.rows.device)
    memory = {name: entry.index_select(1, index) for name, entry in state.items()}
    own = _index(tuple(columns.spans), columns.rows.device)
    return columns.rows.index_select(1, own), memory


@contextmanager
def in_one_block(
    columns: Slices, state: State, spans: Sequence[Span]
) -> Iterator[tuple[Float[Tensor, "m n"], State]]:
    """The same, to change them."""
    rows, memory = gathered(columns, state, spans)
    yield rows, memory
    columns.rows.index_copy_(1, _index(tuple(columns.spans), rows.device), rows)
    index = _index(tuple(spans), rows.device)
    for name, entry in state.items():
        entry.index_copy_(1, index, memory[name])


def _index(spans: tuple[Span, ...], device: torch.device) -> Int[Tensor, "n"]:
    """The columns of spans, made where they are used: all parts' together would be a model more."""
    shifts, widths, total = _places(spans, device)
    shifted = torch.repeat_interleave(shifts, widths, output_size=total)
    return torch.arange(total, device=device) + shifted


@lru_cache(maxsize=4096)
def _places(spans: tuple[Span, ...], device: torch.device) -> tuple[Tensor, Tensor, int]:
    """By how much columns of each span move, how wide these are, and all of them together."""
    widths = torch.tensor([stop - start for start, stop in spans])
    ends = widths.cumsum(0)
    shifts = torch.tensor([start for start, _ in spans]) - (ends - widths)
    return shifts.to(device), widths.to(device), int(ends[-1])
