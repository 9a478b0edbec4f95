"""LSTM's steps and dropout by Triton's interpreter: sizes that are no multiples of anything."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.loop import Batch
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.models import lstm

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU", allow_module_level=True)

from partavg.engines.fused import Fused
from partavg.engines.fused.dropout import operation as dropout
from partavg.engines.fused.dropout import reference as one_by_one
from partavg.engines.fused.recurrent import operation, reference
from partavg.engines.fused.rows import Rows

LAYERS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "one step, one sample": (1, 1, {"bidirectional": True, "batch_first": True}),
    "many samples": (35, 3, {"bidirectional": True}),
    "no bias": (2, 4, {"bias": False, "batch_first": True}),
    "layers": (2, 3, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
}
"""Samples, steps and options."""
WIDTH = 70  # several blocks of units and of what is added up, none of them full


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_an_lstm_of_any_size(kind: str, started: bool) -> None:
    samples, steps, options = LAYERS[kind]
    layer = nn.LSTM(9, WIDTH, **options)
    x, start, *weights = _given(layer, 2, samples, steps)
    leaves = [x, *weights, *(start if started else ())]
    found = []
    for function in (operation.lstm, reference.lstm):
        y, (hidden, cell) = function(layer, weights, x, start if started else None)
        outer = [_outer(each) for each in (y, hidden, cell)]
        found.append([y, hidden, cell, *torch.autograd.grad([y, hidden, cell], leaves, outer)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("used", [0, 1, 2])
def test_an_lstm_of_which_one_result_is_used(used: int) -> None:
    layer = nn.LSTM(5, 20, bidirectional=True, batch_first=True)
    x, _, *weights = _given(layer, 2, 3, 4)
    found = []
    for function in (operation.lstm, reference.lstm):
        y, ends = function(layer, weights, x, None)
        one = (y, *ends)[used]
        found.append(torch.autograd.grad(one, [x, *weights], _outer(one)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_an_lstm_in_half_precision_with_weights_kept_in_full() -> None:
    """In float16: the interpreter's products are wrong in bf16."""
    layer = nn.LSTM(16, 40, bidirectional=True, batch_first=True)
    x, _, *weights = _given(layer, 2, 3, 6)
    low = x.detach().half().requires_grad_()
    y, ends = operation.lstm(layer, weights, low, None)
    truth, last = reference.lstm(layer, weights, low.detach().float().requires_grad_(), None)
    assert y.dtype == ends[1].dtype == torch.float16
    grads = torch.autograd.grad(y, weights, _outer(y))
    expected = torch.autograd.grad(truth, weights, _outer(truth))
    for one, other in zip((y, *ends, *grads), (truth, *last, *expected), strict=True):
        assert (one.float() - other).norm() < 0.01 * other.norm()
    assert {grad.dtype for grad in grads} == {torch.float32}


@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dropout_by_a_kernel_has_the_bits_of_the_others(p: float, dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5, 101).to(dtype).requires_grad_()
    keys = torch.tensor([7, -3, 2**62])
    y = dropout.run(nn.Dropout(p), Rows({}, keys, dtype), "", x)
    assert "Keyed" in str(y.grad_fn)
    expected = one_by_one.dropout(F.dropout, x, keys, p)
    assert torch.equal(y, expected)
    outer = _outer(y)
    assert torch.equal(*(torch.autograd.grad(each, x, outer)[0] for each in (y, expected)))


def test_a_reader_of_texts() -> None:
    """All kernels together, against plain torch."""
    torch.manual_seed(0)
    model = RowModel(
        lstm((6,), 3, words=20, width=20, dropout=0.3), F.cross_entropy, torch.device("cpu")
    )
    params, buffers = model.start()
    rows = params + 0.05 * torch.randn(2, len(params)), buffers.repeat(2, 1)
    batch = Batch(
        torch.randint(0, 20, (2, 3, 6)), torch.randint(0, 3, (2, 3)), torch.tensor([5, 6])
    )
    found = []
    for engine in (Looped(model), Fused(model, 2)):
        each = [(part.losses, *(grad for _, grad in part.pieces)) for part in engine(*rows, batch)]
        found.append([torch.cat(several) for several in zip(*each, strict=True)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def _given(layer: nn.LSTM, workers: int, samples: int, steps: int) -> list[Any]:
    """An input, first states and all weights."""
    torch.manual_seed(0)
    sides = (samples, steps) if layer.batch_first else (steps, samples)
    x = torch.randn(workers, *sides, layer.input_size, requires_grad=True)
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    start = torch.randn(2, workers, rows, samples, layer.hidden_size).unbind()
    shapes = [getattr(layer, name).shape for name in operation.weight_names(layer)]
    weights = [0.3 * torch.randn(workers, *shape) for shape in shapes]
    return [x, tuple(s.requires_grad_() for s in start), *(w.requires_grad_() for w in weights)]


def _outer(y: Tensor) -> Tensor:
    return torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype)
