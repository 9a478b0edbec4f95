"""Columns that belong to no part: each worker's own, never averaged (FedPer, FedBN, LG-FedAvg).

Arivazhagan, Aggarwal, Singh, Choudhary, Federated Learning with Personalization Layers, 2019. Liang
et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020.
Li, Jiang, Zhang, Kamp, Dou, FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization, 2021.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from partavg.core.layout import Layout
from partavg.core.partition import Span, merged, module_of
from partavg.registry import suggestion


class LocalColumns(NamedTuple):
    """The columns of parameters and of buffers that are each worker's own."""

    params: tuple[Span, ...] = ()
    buffers: tuple[Span, ...] = ()

    def of(self, rows: str) -> tuple[Span, ...]:
        """Those of rows by their name, as `Workers` has it: a solver's memory is as wide as params.

        >>> LocalColumns(params=(Span(4, 6),)).of("memory.momentum")
        (Span(start=4, stop=6),)
        """
        if rows == "params" or rows.startswith("memory."):
            return self.params
        return self.buffers if rows == "buffers" else ()


NOTHING_LOCAL = LocalColumns()


def joined(rows: Shaped[Tensor, "m _"], spans: Sequence[Span]) -> Shaped[Tensor, "m l"]:
    """A copy of some columns, one after another."""
    return torch.cat([rows[:, :0], *(rows[:, start:stop] for start, stop in spans)], 1)


def put_back_(
    rows: Shaped[Tensor, "m _"], spans: Sequence[Span], columns: Shaped[Tensor, "m l"]
) -> None:
    """Take back what `joined` gave."""
    widths = [stop - start for start, stop in spans]
    for (start, stop), piece in zip(spans, torch.split(columns, widths, 1), strict=True):
        rows[:, start:stop] = piece


@dataclass(frozen=True)
class Sharing:
    """Which tensors of a layout are shared, and the way between their columns and all columns.

    >>> layout = Layout(("body", "head", "tail"), ((3,), (2,), (4,)))
    >>> sharing = Sharing(layout, frozenset({"head"}))
    >>> sharing.shared.size, sharing.local_spans
    (7, (Span(start=3, stop=5),))
    >>> sharing.among_all([Span(1, 6)])
    (Span(start=1, stop=3), Span(start=5, stop=8))
    >>> sharing.among_shared([Span(1, 8)])
    (Span(start=1, stop=6),)
    """

    layout: Layout
    local: frozenset[str] = frozenset()

    @cached_property
    def shared(self) -> Layout:
        """The tensors that are shared, laid out as if there were no others."""
        return self._some(local=False)

    @cached_property
    def own(self) -> Layout:
        """The tensors that are not, laid out in the same way."""
        return self._some(local=True)

    @cached_property
    def local_spans(self) -> tuple[Span, ...]:
        """The columns of those."""
        return self._spans(local=True)

    def among_all(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Where columns of the shared tensors lie among all columns."""
        if not self.local:
            return tuple(spans)
        return merged(
            Span(max(start, a) + b - a, min(stop, a + length) + b - a)
            for start, stop in spans
            for a, b, length in self._moves
        )

    def among_shared(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Where columns lie among those of the shared tensors; local ones are left out."""
        if not self.local:
            return tuple(spans)
        return merged(
            Span(max(start, b) + a - b, min(stop, b + length) + a - b)
            for start, stop in spans
            for a, b, length in self._moves
        )

    @cached_property
    def _moves(self) -> list[tuple[int, int, int]]:
        """Runs of shared columns: first among shared ones, first among all, length."""
        runs = self._spans(local=False)
        lengths = [stop - start for start, stop in runs]
        firsts = accumulate(lengths, initial=0)
        return [(a, run.start, n) for a, run, n in zip(firsts, runs, lengths, strict=False)]

    def _spans(self, *, local: bool) -> tuple[Span, ...]:
        known = zip(self.layout.names, self.layout.starts, self.layout.sizes, strict=True)
        return merged(Span(a, a + n) for name, a, n in known if (name in self.local) == local)

    def _some(self, *, local: bool) -> Layout:
        known = zip(self.layout.names, self.layout.shapes, strict=True)
        some = {name: shape for name, shape in known if (name in self.local) == local}
        return Layout(tuple(some), tuple(some.values()))


def sharing(patterns: Sequence[str], params: Layout, buffers: Layout) -> tuple[Sharing, Sharing]:
    """What of parameters and buffers is shared, where `patterns` name what is not.

    Patterns are those of a shell, of names as in a state dict: `head.*`, `*.bn?.weight`. The
    buffers of a module whose parameters are all local are local, too.

    >>> params = Layout(("body.weight", "bn.weight"), ((4, 3), (4,)))
    >>> own, kept = sharing(["bn.*"], params, Layout(("bn.mean",), ((4,),)))
    >>> own.local, kept.local
    (frozenset({'bn.weight'}), frozenset({'bn.mean'}))
    """
    _check(patterns, params, buffers)
    own = frozenset(name for name in params.names if matches(name, patterns))
    modules = {module_of(name) for name in own} - {
        module_of(name) for name in params.names if name not in own
    }
    kept = frozenset(
        name for name in buffers.names if matches(name, patterns) or module_of(name) in modules
    )
    return Sharing(params, own), Sharing(buffers, kept)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns is of this name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check(patterns: Sequence[str], params: Layout, buffers: Layout) -> None:
    listed = isinstance(patterns, Iterable) and not isinstance(patterns, str)
    if not listed or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(
            f"local {patterns!r} is no list of patterns: give names of parameters, like "
            f"['head.*', '*.bn*']"
        )
    names = (*params.names, *buffers.names)
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in names):
            modules = {f"{part}.*": None for name in names for part in _modules(name)}
            hint = suggestion(pattern, [*modules, *names])
            raise ValueError(
                f"local {pattern!r} matches no parameter that is trained and no buffer: {hint}"
            )
    if all(matches(name, patterns) for name in params.names):
        raise ValueError(
            f"local {list(patterns)} matches all parameters: nothing is left to average; leave "
            f"something out"
        )


def _modules(name: str) -> list[str]:
    """The modules that a tensor is in, the innermost first."""
    module = module_of(name)
    return [module, *_modules(module)] if module else []
