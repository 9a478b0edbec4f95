"""How the work of convolutions with few channels is cut; tests/kernels shows what they compute."""

import pytest
import torch
from torch import nn

from partavg.core.layout import Layout
from partavg.engines.fused.convolution import few_channels_cuda
from partavg.engines.fused.convolution.case import Case, Window
from partavg.engines.fused.convolution.tiling import tiling_of, transposed
from partavg.engines.fused.program import Program
from partavg.engines.pieces import pieces
from partavg.models import MODELS


def tiling(inputs: int, outputs: int, size: int, side: int = 3, stride: int = 1, count: int = 4):
    window = Window((stride, stride), (side // 2, side // 2))
    return tiling_of(Case(count, inputs, size, size, outputs, (side, side), window))


@pytest.mark.parametrize(
    "case",
    [(3, 16, 32), (16, 16, 32), (32, 32, 16), (64, 64, 8), (16, 32, 32, 3, 2), (32, 64, 16, 1, 2)],
    ids=str,
)
def test_the_layers_of_resnet20_are_covered(case) -> None:
    own = tiling(*case)
    assert own is not None
    assert own.rows * own.images * own.GW == own.pixels
    for cut in (own.forward(), own.forward(gated=True), own.weight()):
        assert cut["memory"] <= 227 * 1024
        assert cut["THREADS"] % 32 == 0
        assert cut["BLOCKS"] * (cut["memory"] + 1024) <= 228 * 1024
    back = transposed(own)
    assert (own.K, own.C, int(own.STRIDE == 2)) == (back.C, back.K, back.UP)


@pytest.mark.parametrize(
    "case", [(16, 16, 28), (48, 48, 32), (128, 128, 8), (16, 16, 32, 5), (3, 16, 32, 3, 2)], ids=str
)
def test_other_layers_are_left_to_others(case) -> None:
    assert tiling(*case) is None


@pytest.mark.parametrize("workers", [1, 3, 32, 100, 128, 300])
@pytest.mark.parametrize("tiles", [1, 7, 128])
def test_every_tile_is_given_to_one_block(
    tiles: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_channels_cuda, "processors", lambda device: 132)
    each = few_channels_cuda._each(tiles, workers, 4, torch.device("cpu"))
    splits = -(-tiles // each)
    assert (splits - 1) * each < tiles <= splits * each
    assert splits <= 32


def test_a_convolution_right_after_a_norm_is_found() -> None:
    program = Program(MODELS["resnet20"]((3, 32, 32), 10))
    # The norms before the second convolutions, and those before the first, but not the shortcuts'.
    assert len(program._convs) == 18
    assert all(isinstance(program._layer(conv), nn.Conv2d) for conv in program._convs.values())


def test_large_gradients_are_handed_over_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partavg.engines.pieces._MOST_ON_CPU", 8)
    layout = Layout.of({"a": torch.empty(4, 3), "b": torch.empty(2, 3), "c": torch.empty(2)})
    a, b, c = torch.randn(2, 4, 3), torch.randn(2, 3, 2).mT, torch.randn(2, 1).expand(2, 2)
    expected = torch.cat([grad.reshape(2, -1) for grad in (a, b, c)], 1)
    found = list(pieces([a, b, c], layout))
    assert torch.equal(torch.cat([piece for _, piece in found], 1), expected)
    assert found[0][1].data_ptr() == a.data_ptr()  # no copy
    assert all(piece.stride(1) == 1 for _, piece in found)  # in place is safe


def test_small_gradients_that_follow_each_other_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partavg.engines.pieces._SMALL_ON_CPU", 6)
    sizes = {"a": 2, "b": 3, "c": 9, "d": 1, "e": 1}
    layout = Layout.of({name: torch.empty(size) for name, size in sizes.items()})
    grads = list(torch.randn(2, 16).split(list(sizes.values()), 1))
    large = grads[2] = grads[2].clone()
    expected = torch.cat(grads, 1)
    found = list(pieces(grads, layout))
    assert [columns for columns, _ in found] == [slice(0, 5), slice(5, 14), slice(14, 16)]
    assert all(torch.equal(piece, expected[:, columns]) for columns, piece in found)
    assert found[1][1].data_ptr() == large.data_ptr()
