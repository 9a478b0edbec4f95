"""The masks that dropout draws from a key."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.loop import Batch
from partavg.engines.dropout import KeyedDropout
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel

CPU = torch.device("cpu")


@pytest.mark.filterwarnings("ignore:dropout2d")
@pytest.mark.parametrize(
    ("function", "shape", "drawn"),
    [
        (F.dropout, (6, 5, 4, 3), 4),
        (F.dropout1d, (6, 50, 4), 2),
        (F.dropout1d, (50, 4), 1),
        (F.dropout2d, (6, 50, 4, 3), 2),
        (F.dropout2d, (6, 50, 4), 2),
        (F.dropout3d, (6, 50, 4, 3, 2), 2),
        (F.dropout3d, (50, 4, 3, 2), 1),
    ],
)
def test_whole_channels_are_dropped_where_torch_drops_them(function, shape, drawn: int) -> None:
    ones = torch.ones(shape)
    for mask in (function(ones), _under_a_key(function, ones)):
        first = mask[(..., *[slice(0, 1)] * (len(shape) - drawn))] if drawn < len(shape) else mask
        assert torch.equal(mask, first.expand(shape)), "the same over all other axes"
        assert {0.0, 2.0} == set(mask.unique().tolist())


def _under_a_key(function, x: Tensor) -> Tensor:
    with KeyedDropout(torch.tensor(5)):
        return function(x)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_drops_the_right_share_and_scales_the_rest(p: float, inplace: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(100_000))
            self.dropout = nn.Dropout(p, inplace=inplace)

        def forward(self, x: Tensor) -> Tensor:
            return self.dropout(x * self.scale)

    model = RowModel(Net(), lambda outputs, _: outputs.sum(), CPU)
    params, buffers = (row[None] for row in model.start())
    batch = Batch(torch.ones(1, 1, 100_000), torch.zeros(1, 1), torch.tensor([3]))
    (found,) = Looped(model)(params, buffers, batch)
    ((_, mask),) = found.pieces
    assert (mask == 0).float().mean() == pytest.approx(p, abs=0.01)
    kept = mask[mask != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p) if p < 1 else 1.0))


def test_masks_of_neighboring_calls_and_keys_are_independent() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2, 50_000))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([F.dropout(x[0] * row) for row in self.scale])

    model = RowModel(Net(), lambda outputs, _: outputs.sum(), CPU)
    params, buffers = (row.repeat(2, 1) for row in model.start())
    batch = Batch(torch.ones(2, 1, 50_000), torch.zeros(2, 1), torch.tensor([3, 4]))
    masks = [m.view(2, -1) / 2 for f in Looped(model)(params, buffers, batch) for _, m in f.pieces]
    flat = torch.cat(masks)
    for one in range(4):
        for other in range(one):
            for shift in range(3):
                a, b = flat[one], flat[other].roll(shift)
                assert (a * b).mean() == pytest.approx(0.25, abs=0.01)
