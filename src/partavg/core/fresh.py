"""A fresh random share of the columns for every averaging.

SPARTA: Beton, Reed, Howes, Cheema, Baioumy, Improving the Efficiency of Distributed Training using
Sparse Parameter Averaging, 2025.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.arguments import check_whole
from partavg.core.partition import Span
from partavg.core.seeds import bits, bits24, fold


@dataclass(frozen=True, slots=True)
class Fresh:
    """One column out of each run of about `one_in`, drawn anew from (seed, step, part).

    So every message has as many columns, drawing costs as much as the message is long, and every
    process draws the same, on any device. `spans` are all columns that are averaged.

    >>> fresh = Fresh((Span(0, 4), Span(6, 10)), one_in=4, seed=0)
    >>> [[columns.tolist() for columns in fresh(step)] for step in (1, 2, 3)]
    [[[2], [2]], [[2], [1]], [[2], [1]]]
    """

    spans: tuple[Span, ...]
    one_in: int
    seed: int

    def __post_init__(self) -> None:
        check_whole("one_in", self.one_in, 1)
        check_whole("seed", self.seed)

    @property
    def size(self) -> int:
        """How many columns there are to draw from."""
        return sum(stop - start for start, stop in self.spans)

    @property
    def count(self) -> int:
        """How many columns are drawn."""
        return max(1, self.size // self.one_in)

    def __call__(
        self, step: int, part: int = 0, device: torch.device | None = None
    ) -> Iterator[Int[Tensor, "_"]]:
        """Of each span the columns that are averaged after a step, counted from its start."""
        key = fold(self.seed, "fresh", step, part)
        starts = torch.arange(self.count + 1, device=device) * self.size // self.count
        drawn = bits24(torch.full((), key, device=device), (self.count,))
        columns = starts[:-1] + (drawn * starts.diff() >> 24)
        widths = np.array([stop - start for start, stop in self.spans])
        ends = widths.cumsum()
        pieces = torch.split(columns, np.diff(self._before(ends, key), prepend=0).tolist())
        for piece, end, width in zip(pieces, ends.tolist(), widths.tolist(), strict=True):
            yield piece - (end - width)

    def _before(self, ends: Int[np.ndarray, "s"], key: int) -> Int[np.ndarray, "s"]:
        """How many of the columns that are drawn lie before each of some others.

        The numbers are drawn once more here, so that a GPU need not be asked.
        """
        size, count = self.size, self.count
        run = np.minimum(((ends + 1) * count - 1) // size, count - 1)
        start, stop = run * size // count, (run + 1) * size // count
        drawn = bits(np.array([key], np.uint64), run.astype(np.uint64)) >> np.uint64(40)
        columns = start + (drawn.astype(np.int64) * (stop - start) >> 24)
        before: Int[np.ndarray, s] = run + (columns < ends)
        return before
