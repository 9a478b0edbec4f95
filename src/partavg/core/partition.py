"""Ways to cut the columns of a model into the parts that are averaged together."""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from partavg.core.arguments import check_kind, check_whole
from partavg.core.fragments import Patterns, blocks_of, named
from partavg.core.layout import Layout
from partavg.registry import Names
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


def whole(layout: Layout, parts: int, seed: int = 0) -> Partition:
    """All columns in one part: what periodic averaging and synchronous SGD use.

    >>> whole(Layout(("weight", "bias"), ((4, 3), (4,))), 1).sizes
    (16,)
    """
    _check_layout(layout, seed)
    _check_count(parts, 1, "the whole model is one part")
    return Partition(layout.size, ((Span(0, layout.size),),))


def contiguous(layout: Layout, parts: int, seed: int = 0) -> Partition:
    """Equal ranges of columns, in order.

    >>> contiguous(Layout(("weight", "bias"), ((4, 3), (4,))), 2).parts
    ((Span(start=0, stop=8),), (Span(start=8, stop=16),))
    """
    _check_layout(layout, seed)
    _check_count(parts, layout.size, f"the model has {layout.size} columns")
    cuts = [layout.size * part // parts for part in range(parts + 1)]
    return Partition(layout.size, tuple((Span(*ends),) for ends in pairwise(cuts)))


def by_channel(layout: Layout, parts: int, seed: int = 0) -> Partition:
    """Every tensor cut along its output axis; each part gets a share of each tensor's channels.

    All parts get equally many channels of a tensor; those left over go to the parts that are
    smallest so far, widest channels first, so that the parts end almost equally large.

    >>> by_channel(Layout(("weight", "bias"), ((4, 3), (4,))), 2).parts[0]
    (Span(start=0, stop=6), Span(start=12, stop=14))
    """
    _check_layout(layout, seed)
    channels = sum(_channels(shape) for shape in layout.shapes if prod(shape))
    _check_count(parts, channels, f"the model has {channels} channels")
    spans: list[list[Span]] = [[] for _ in range(parts)]
    filled = [0] * parts
    tensors = [
        (size // _channels(shape), start, _channels(shape))
        for start, size, shape in zip(layout.starts, layout.sizes, layout.shapes, strict=True)
        if size
    ]
    for width, start, count in sorted(tensors, key=lambda tensor: tensor[0], reverse=True):
        share, left = divmod(count, parts)
        smallest = set(sorted(range(parts), key=lambda part: (filled[part], part))[:left])
        for part in range(parts):
            columns = width * (share + (part in smallest))
            spans[part].append(Span(start, start + columns))
            filled[part] += columns
            start += columns
    return Partition(layout.size, tuple(merged(part) for part in spans))


def by_layer(layout: Layout, parts: int, seed: int = 0) -> Partition:
    """Whole layers (the tensors of one module), the largest first, each to the smallest part.

    >>> by_layer(Layout(("0.weight", "0.bias", "2.weight"), ((4, 3), (4,), (2, 4))), 2).sizes
    (16, 8)
    """
    _check_layout(layout, seed)
    layers: dict[str, list[Span]] = {}
    for name, start, size in zip(layout.names, layout.starts, layout.sizes, strict=True):
        layers.setdefault(module_of(name), []).append(Span(start, start + size))
    _check_count(parts, len(layers), f"the model has {len(layers)} layers")
    spans: list[list[Span]] = [[] for _ in range(parts)]
    filled = [0] * parts
    for layer in sorted(layers.values(), key=_width, reverse=True):
        smallest = min(range(parts), key=lambda part: (filled[part], part))
        spans[smallest] += layer
        filled[smallest] += _width(layer)
    return Partition(layout.size, tuple(merged(part) for part in spans))


def blocks(layout: Layout, parts: int, seed: int = 0) -> Partition:
    """Equal blocks of columns, 16 for each part where there are enough, dealt at random.

    >>> blocks(Layout(("weight",), ((64, 3),)), 4, seed=0).sizes
    (48, 48, 48, 48)
    """
    _check_layout(layout, seed)
    _check_count(parts, layout.size, f"the model has {layout.size} columns")
    count = parts * max(1, min(16, layout.size // parts))
    cuts = [layout.size * block // count for block in range(count + 1)]
    dealt = [Span(*ends) for ends in pairwise(cuts)]
    random.Random(seed).shuffle(dealt)
    return Partition(layout.size, tuple(merged(dealt[part::parts]) for part in range(parts)))


def strided(layout: Layout, parts: int, seed: int = 0) -> Partition:
    """Whole blocks, like `layers.0`, dealt in turn: part p gets the blocks p, p + P, p + 2P and on.

    What is in no block goes with the tensor before it, or with the first block.

    >>> names = ("embed", "layers.0.w", "layers.1.w", "layers.2.w", "head")
    >>> strided(Layout(names, ((5,), (1,), (2,), (3,), (7,))), 2).sizes
    (16, 2)
    """
    blocks = _blocks_of(layout, parts, seed)
    return _of_tensors(layout, [block % parts for block in blocks], parts)


def sequential(layout: Layout, parts: int, seed: int = 0) -> Partition:
    """Whole blocks, like `layers.0`, in order: each part gets some that follow each other.

    >>> names = ("embed", "layers.0.w", "layers.1.w", "layers.2.w", "head")
    >>> sequential(Layout(names, ((5,), (1,), (2,), (3,), (7,))), 2).sizes
    (8, 10)
    """
    blocks = _blocks_of(layout, parts, seed)
    count = max(blocks) + 1
    return _of_tensors(layout, [block * parts // count for block in blocks], parts)


def by_name(layout: Layout, patterns: Patterns) -> Partition:
    """A part for each list of patterns, which name its tensors or modules.

    What no pattern names goes with the tensor before it, or with the first that is named.

    >>> layout = Layout(("embed", "layers.0.w", "layers.1.w"), ((5,), (1,), (2,)))
    >>> by_name(layout, [["layers.1"], ["layers.0"]]).sizes
    (2, 6)
    """
    check_kind("layout", layout, Layout, "a partavg.Layout")
    return _of_tensors(layout, named(layout.names, patterns), len(patterns))


def fresh(layout: Layout, parts: int, seed: int = 0) -> Partition:
    """Equal ranges, which only the consensus uses: each averaging draws columns of its own.

    See `partavg.core.fresh.Fresh`: that is SPARTA.
    """
    return contiguous(layout, parts, seed)


PARTITIONS: Names[Callable[[Layout, int, int], Partition]] = Names(
    "partition",
    {
        "blocks": blocks,
        "channel": by_channel,
        "contiguous": contiguous,
        "fresh": fresh,
        "layer": by_layer,
        "sequential": sequential,
        "strided": strided,
        "whole": whole,
    },
)


def partition_buffers(partition: Partition, params: Layout, buffers: Layout) -> Partition:
    """Cut the buffers so that a channel's statistics go with that channel's parameters.

    A buffer follows a parameter of its own module with as many channels (BatchNorm's weight);
    a buffer without one is cut evenly. Parts without buffers stay empty.
    """
    owners = partition.owners()
    parts = len(partition.parts)
    spans: list[list[Span]] = [[] for _ in range(parts)]
    for name, shape, start, size in zip(
        buffers.names, buffers.shapes, buffers.starts, buffers.sizes, strict=True
    ):
        count = _channels(shape)
        leader = _leader(params, module_of(name), count)
        if leader:
            followed = owners[leader.start : leader.stop : leader.step].tolist()
        else:
            followed = [channel * parts // count for channel in range(count)]
        width = size // max(1, count)
        for channel, part in enumerate(followed):
            spans[part].append(Span(start + channel * width, start + (channel + 1) * width))
    return Partition(buffers.size, tuple(merged(part) for part in spans))


def module_of(name: str) -> str:
    """The module a tensor belongs to: `block.1.conv` for `block.1.conv.weight`."""
    return name.rpartition(".")[0]


def _blocks_of(layout: Layout, parts: int, seed: int) -> list[int]:
    """The repeated block that each tensor is in."""
    _check_layout(layout, seed)
    blocks = blocks_of(layout.names)
    count = max(blocks, default=-1) + 1
    _check_count(parts, count, f"the model has {count} repeated blocks")
    return blocks


def _of_tensors(layout: Layout, owners: Sequence[int], parts: int) -> Partition:
    """Whole tensors, each in the part that owns it."""
    spans: list[list[Span]] = [[] for _ in range(parts)]
    for owner, start, size in zip(owners, layout.starts, layout.sizes, strict=True):
        spans[owner].append(Span(start, start + size))
    return Partition(layout.size, tuple(merged(part) for part in spans))


def _leader(params: Layout, module: str, channels: int) -> range | None:
    """First columns of the channels of the parameter that a buffer of `module` follows."""
    for name, shape, start, size in zip(
        params.names, params.shapes, params.starts, params.sizes, strict=True
    ):
        if size and module_of(name) == module and _channels(shape) == channels:
            return range(start, start + size, size // channels)
    return None


def _channels(shape: Sequence[int]) -> int:
    return shape[0] if shape else 1


def _width(spans: Iterable[Span]) -> int:
    return sum(stop - start for start, stop in spans)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sort the spans, drop the empty ones and join those that touch."""
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.stop > span.start):
        if merged and merged[-1].stop == span.start:
            merged[-1] = Span(merged[-1].start, span.stop)
        else:
            merged.append(span)
    return tuple(merged)


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


def _check_layout(layout: Layout, seed: int) -> None:
    check_kind("layout", layout, Layout, "a partavg.Layout")
    check_whole("seed", seed)


def _check_count(parts: int, most: int, why: str) -> None:
    check_whole("parts", parts)
    if not 1 <= parts <= most:
        raise ValueError(f"cannot fill {parts} parts: {why}; use 1 to {most} parts")
