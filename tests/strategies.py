"""Random layouts, partitions and schedules."""

import torch
from hypothesis import strategies as st

from partavg.core.cuts import PARTITIONS
from partavg.core.layout import Layout
from partavg.core.partition import Partition, module_of
from partavg.core.schedule import Schedule

shapes = st.lists(st.integers(1, 6), min_size=0, max_size=4).map(tuple)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Modules with one to three tensors each."""
    modules = draw(st.lists(st.lists(shapes, min_size=1, max_size=3), min_size=1, max_size=6))
    names = [
        f"module{i}.tensor{j}" for i, tensors in enumerate(modules) for j in range(len(tensors))
    ]
    return Layout(tuple(names), tuple(shape for tensors in modules for shape in tensors))


def most_parts(maker: str, layout: Layout) -> int:
    """How many parts a maker can fill."""
    return {
        "whole": 1,
        "contiguous": layout.size,
        "blocks": layout.size,
        "channel": sum(shape[0] if shape else 1 for shape in layout.shapes),
        "fresh": layout.size,
        "layer": len({module_of(name) for name in layout.names}),
        "sequential": len({module_of(name) for name in layout.names}),
        "strided": len({module_of(name) for name in layout.names}),
    }[maker]


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Layout, Partition]:
    """A layout, cut by any maker into any number of parts that it can fill."""
    layout = draw(layouts())
    maker = draw(st.sampled_from(sorted(PARTITIONS)))
    parts = draw(st.integers(1, min(12, most_parts(maker, layout))))
    return layout, PARTITIONS[maker](layout, parts, draw(st.integers(0, 9)))


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """An interval, cut into any number of parts that divides it."""
    parts = draw(st.integers(1, 8))
    return Schedule(parts * draw(st.integers(1, 6)), parts)


def rows(workers: int, size: int, seed: int) -> torch.Tensor:
    """Random rows in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(workers, size, generator=generator, dtype=torch.float64)
