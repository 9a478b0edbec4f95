import pytest
import torch
from hypothesis import given
from tests.strategies import layouts, most_parts, partitions

from partavg.core.buffer_parts import partition_buffers
from partavg.core.cuts import PARTITIONS, by_channel, by_layer, contiguous
from partavg.core.layout import Layout
from partavg.core.partition import Partition, Span
from partavg.models import resnet20


@given(partitions())
def test_parts_cover_every_column_exactly_once(case: tuple[Layout, Partition]) -> None:
    layout, partition = case
    columns = [c for part in partition.parts for span in part for c in range(*span)]
    assert sorted(columns) == list(range(layout.size))
    assert all(partition.parts)
    assert partition.sizes == tuple(torch.bincount(partition.owners()).tolist())


@given(layouts())
def test_more_parts_than_a_maker_can_fill_are_refused(layout: Layout) -> None:
    for name, maker in PARTITIONS.items():
        most = most_parts(name, layout)
        with pytest.raises(ValueError, match=f"cannot fill {most + 1} parts.*use 1 to {most}"):
            maker(layout, most + 1, 0)
        with pytest.raises(ValueError, match="cannot fill 0 parts"):
            maker(layout, 0, 0)


@pytest.mark.parametrize("projection", [True, False])
def test_channel_parts_of_resnet20_are_balanced(projection: bool) -> None:
    layout = Layout.of(dict(resnet20((3, 32, 32), 10, projection=projection).named_parameters()))
    for parts in range(2, 65):
        sizes = by_channel(layout, parts).sizes
        assert max(sizes) <= 1.05 * min(sizes), (parts, sizes)


@given(layouts())
def test_channels_are_never_cut(layout: Layout) -> None:
    owners = by_channel(layout, min(3, most_parts("channel", layout))).owners()
    for view, shape in zip(layout.views(owners).values(), layout.shapes, strict=True):
        for channel in view.reshape(shape[0] if shape else 1, -1):
            assert len(channel.unique()) == 1


@given(layouts())
def test_layers_are_never_cut(layout: Layout) -> None:
    owners = by_layer(layout, most_parts("layer", layout)).owners()
    owner_of: dict[str, int] = {}
    for name, view in layout.views(owners).items():
        for owner in view.unique().tolist():
            assert owner_of.setdefault(name.split(".")[0], owner) == owner


def test_random_blocks_depend_on_the_seed_alone() -> None:
    layout = Layout(("w",), ((1000,),))
    cut = [PARTITIONS["blocks"](layout, 4, seed).digest() for seed in (0, 0, 1)]
    assert cut[0] == cut[1] != cut[2]


def test_the_digest_tells_partitions_apart() -> None:
    layout = Layout(("a.w", "b.w"), ((4, 3), (5, 2)))
    digests = {maker(layout, 2, 0).digest() for maker in (contiguous, by_channel, by_layer)}
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (((Span(0, 2),), (Span(3, 5),)), "starts at 2"),
        (((Span(0, 3),), (Span(2, 5),)), "starts at 3"),
        (((Span(0, 2),), (Span(2, 2), Span(2, 5))), "starts at 2"),
        (((Span(0, 2),), (Span(2, 4),)), "cover 4 of 5"),
    ],
)
def test_a_partition_that_misses_or_repeats_columns_is_refused(parts, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Partition(5, parts)


def test_buffers_follow_the_channels_of_their_module() -> None:
    params = Layout(("conv.weight", "norm.weight", "norm.bias"), ((4, 3), (4,), (4,)))
    buffers = Layout(("norm.running_mean", "norm.steps", "free.table"), ((4,), (), (6,)))
    partition = by_channel(params, 2)
    owners = params.views(partition.owners())
    followed = buffers.views(partition_buffers(partition, params, buffers).owners())
    assert torch.equal(followed["norm.running_mean"], owners["norm.weight"])
    assert followed["free.table"].tolist() == [0, 0, 0, 1, 1, 1]


def test_parts_without_buffers_stay_empty() -> None:
    params = Layout(("a.weight", "b.weight"), ((4,), (4,)))
    buffers = Layout(("a.mean",), ((4,),))
    assert partition_buffers(by_layer(params, 2), params, buffers).parts == ((Span(0, 4),), ())
