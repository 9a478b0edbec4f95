"""Ways to cut the columns of a model into the parts that are averaged together."""

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import prod

from partavg.core.arguments import check_kind, check_whole
from partavg.core.fragments import Patterns, blocks_of, named
from partavg.core.layout import Layout, channels_of
from partavg.core.partition import Partition, Span, merged, module_of
from partavg.registry import Names


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
    channels = sum(channels_of(shape) for shape in layout.shapes if prod(shape))
    _check_count(parts, channels, f"the model has {channels} channels")
    spans: list[list[Span]] = [[] for _ in range(parts)]
    filled = [0] * parts
    tensors = [
        (size // channels_of(shape), start, channels_of(shape))
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


def _width(spans: Iterable[Span]) -> int:
    return sum(stop - start for start, stop in spans)


def _check_layout(layout: Layout, seed: int) -> None:
    check_kind("layout", layout, Layout, "a partavg.Layout")
    check_whole("seed", seed)


def _check_count(parts: int, most: int, why: str) -> None:
    check_whole("parts", parts)
    if not 1 <= parts <= most:
        raise ValueError(f"cannot fill {parts} parts: {why}; use 1 to {most} parts")
