"""LSTM layers of all kinds, step by step against torch's own, and in both engines."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.loop import Batch
from partavg.engines.choose import choose
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.engines.unfused_lstm import UnfusedLSTM
from partavg.engines.vmapped import Vmapped
from partavg.models import lstm

CPU = torch.device("cpu")
KINDS = {
    "plain": {},
    "both directions": {"bidirectional": True},
    "layers": {"num_layers": 3, "bidirectional": True},
    "no biases": {"bias": False},
    "projection": {"proj_size": 2, "num_layers": 2},
    "projection without biases": {"proj_size": 2, "bias": False, "bidirectional": True},
    "batch first": {"batch_first": True, "bidirectional": True},
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_step_by_step_equals_torch(kind: str) -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(3, 4, dtype=torch.float64, **KINDS[kind])
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    _, zeros = layer(x)
    start = tuple(torch.randn_like(state) for state in zeros)
    expected = _values_and_gradients(layer, x, start)
    with UnfusedLSTM():
        found = _values_and_gradients(layer, x, start)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def _values_and_gradients(layer: nn.LSTM, x: Tensor, start: tuple[Tensor, ...]) -> list[Tensor]:
    outputs, (hidden, cell) = layer(x, start)
    loss = outputs.square().sum() + hidden.sin().sum() + cell.cos().sum()
    return [outputs, hidden, cell, *torch.autograd.grad(loss, list(layer.parameters()))]


class Raw(nn.Module):
    """An LSTM on numbers, which need no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][:, -1]


class Text(nn.Module):
    """Unpads its texts, each to a length of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.tensor([5, 4, 3, 2])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.layer(packed)[1][0][0]


def numbers(module: nn.Module) -> tuple[RowModel, tuple[Tensor, Tensor], Batch]:
    torch.manual_seed(0)
    model = RowModel(module, F.cross_entropy, CPU)
    batch = Batch(torch.randn(3, 4, 5, 3), torch.randint(0, 4, (3, 4)), torch.arange(3))
    return model, model.start(), batch


def test_numbers_are_read_too() -> None:
    assert choose("vmapped", 0, *numbers(Raw())).name == "vmapped"


def test_packed_sequences_are_looped_over() -> None:
    choice = choose("auto", 0, *numbers(Text()))
    assert choice.name == "looped"
    assert "vmapped cannot run this model" in choice.reason


def test_auto_takes_the_faster_engine_for_texts() -> None:
    """And both draw the same dropout masks, in float32 as well."""
    torch.manual_seed(0)
    model = RowModel(lstm((6,), 3, words=20, width=4, dropout=0.5), F.cross_entropy, CPU)
    texts = torch.randint(0, 20, (4, 5, 6))
    batch = Batch(texts, torch.randint(0, 3, (4, 5)), torch.arange(4) + 7)
    choice = choose("auto", 0, model, model.start(), batch)
    assert "ms per worker" in choice.reason, "both were tried and agreed"
    params, buffers = (row.repeat(4, 1) for row in model.start())
    looped = torch.cat([found.losses for found in Looped(model)(params, buffers, batch)])
    vmapped = torch.cat([found.losses for found in Vmapped(model, 3)(params, buffers, batch)])
    torch.testing.assert_close(vmapped, looped)
