"""The columns that an averaging is about, and what is remembered of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partavg.core.abilities import abilities
from partavg.core.partition import Span
from partavg.core.plan import Plan
from partavg.core.solver import Solver, State
from partavg.core.views import Views
from partavg.core.workers import Workers


class Share(NamedTuple):
    """Columns of parameters: views of a part's spans, or a copy of those that were drawn."""

    params: Views
    spans: Sequence[Span]
    """Where they lie in `memory` and `common`."""
    memory: State
    common: Float[Tensor, "_"] | None
    drawn: "Drawn | None" = None

    def note_common_(self) -> None:
        """Keep what all workers have in common now, where somebody wants to know."""
        if self.common is not None:
            for (start, stop), rows in zip(self.spans, self.params, strict=True):
                self.common[start:stop] = rows[0]

    def put_back_(self, workers: Workers) -> None:
        """Let workers have what became of a copy."""
        if self.drawn is None:
            return
        (params,), index = self.params, self.drawn.columns
        pieces = torch.split(params, [len(place) for place in self.drawn.places], 1)
        for view, place, piece in zip(self.drawn.views, self.drawn.places, pieces, strict=True):
            view.index_copy_(1, place, piece.to(view.dtype))
        for name, own in self.memory.items():
            if own is not workers.memory[name]:
                workers.memory[name].index_copy_(1, index, own)
        if workers.common is not None and self.common is not None:
            workers.common.index_copy_(0, index, self.common)


class Drawn(NamedTuple):
    """Where drawn columns came from."""

    views: Sequence[Float[Tensor, "m _"]]
    places: Sequence[Int[Tensor, "_"]]
    """In each view."""
    columns: Int[Tensor, "n"]
    """Among all."""


def share_of(workers: Workers, plan: Plan, part: int, step: int) -> Share:
    """The columns that are averaged after a step, when a part is due."""
    if plan.fresh is None:
        spans = plan.partition.parts[part]
        return Share(workers.columns(spans, ())[0], spans, workers.memory, workers.common)
    spans, size = plan.fresh.spans, plan.partition.size
    views = list(workers.columns(spans, ())[0])
    places = list(plan.fresh(step, part, workers.params.device))
    starts = [span.start for span in spans]
    index = torch.cat([place + start for place, start in zip(places, starts, strict=True)])
    params = torch.cat([v.index_select(1, p) for v, p in zip(views, places, strict=True)], 1)
    memory = {
        name: entry.index_select(1, index) if entry.shape[1] == size else entry
        for name, entry in workers.memory.items()
    }
    common = None if workers.common is None else workers.common[index]
    return Share([params], (Span(0, len(index)),), memory, common, Drawn(views, places, index))


Recalled = tuple[State, Sequence[Span]]
"""What is remembered of some columns, and where these lie in it."""


def memory_to_send(workers: Workers, share: Share, solver: Solver) -> Recalled:
    """What is remembered of a share's columns, as far as a message needs it."""
    if abilities(solver).plain or share.drawn:
        return share.memory, share.spans
    return workers.recall(share.spans, to_send=True)


@contextmanager
def recalled(workers: Workers, share: Share, solver: Solver) -> Iterator[Recalled]:
    """What is remembered of a share's columns, to change it."""
    if abilities(solver).plain or share.drawn:
        yield share.memory, share.spans
        return
    memory, places = workers.recall(share.spans)
    yield memory, places
    workers.remember_(share.spans, memory)
