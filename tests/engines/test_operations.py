"""Every operation of the fused engine against its slow reference, and their benchmarks."""

import importlib
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from partavg.engines import fused
from partavg.engines.fused import comparison
from partavg.engines.fused.comparison import Setting
from partavg.engines.fused.convolution import reference
from partavg.engines.fused.convolution.case import Window
from partavg.engines.fused.convolution.one_worker import OneWorkerAtATime
from partavg.engines.fused.dispatch import device_of
from partavg.engines.fused.recurrent import operation as recurrent
from partavg.engines.fused.recurrent import reference as one_by_one

FOLDERS = sorted(path.parent.name for path in Path(fused.__file__).parent.glob("*/operation.py"))
SETTING = Setting(torch.device("cpu"), torch.float64, workers=2, samples=3)


@pytest.mark.parametrize("folder", FOLDERS)
def test_operations_equal_their_references(folder: str) -> None:
    """Outputs and gradients; on a GPU, benchmarks/gpu_check.py compares the kernels."""
    benchmark = importlib.import_module(f"partavg.engines.fused.{folder}.benchmark")
    torch.manual_seed(0)
    for each in benchmark.comparisons(SETTING):
        ours, theirs = each.run(each.operation), each.run(each.reference)
        assert len(ours) > 1
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, msg=each.title)


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_lstm_that_goes_on_from_states(batch_first: bool) -> None:
    layer = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=batch_first)
    shapes = [getattr(layer, name).shape for name in recurrent.weight_names(layer)]
    made = partial(torch.randn, dtype=torch.float64, requires_grad=True)
    weights, x = [made(2, *shape) for shape in shapes], made(2, 5, 5, 3)
    start = made(2, 4, 5, 4), made(2, 4, 5, 4)
    found = []
    for lstm in (recurrent.lstm, one_by_one.lstm):
        y, (hidden, cell) = lstm(layer, weights, x, start)
        total = y.cos().sum() + hidden.sin().sum() + cell.square().sum()
        found.append([y, hidden, cell, *torch.autograd.grad(total, [x, *start, *weights])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_an_lstm_without_samples() -> None:
    for batch_first in (True, False):
        layer = nn.LSTM(3, 4, bidirectional=True, batch_first=batch_first)
        shapes = [getattr(layer, name).shape for name in recurrent.weight_names(layer)]
        weights = [torch.randn(2, *shape, requires_grad=True) for shape in shapes]
        x = torch.randn(2, 0, 5, 3) if batch_first else torch.randn(2, 5, 0, 3)
        y, (hidden, cell) = recurrent.lstm(layer, weights, x, None)
        assert y.shape == (*x.shape[:3], 8)
        assert hidden.shape == cell.shape == (2, 2, 0, 4)
        assert not any(grad.any() for grad in torch.autograd.grad(y.sum(), weights))


def test_one_worker_at_a_time() -> None:
    """Torch's kernels alone, which dispatch takes on GPUs only."""
    for stride, side, biased in ((1, 3, True), (2, 1, False)):
        window = Window((stride, stride), (side // 2, side // 2))
        x = torch.randn(2, 3, 5, 8, 8, requires_grad=True)
        weight = torch.randn(2, 4, 5, side, side, requires_grad=True)
        bias = torch.randn(2, 4, requires_grad=True) if biased else None
        y, again = OneWorkerAtATime.apply(x, weight, bias, stride, window.rim)
        expected = reference.convolve(x, weight, bias, window)
        torch.testing.assert_close(y, expected)
        leaves = [leaf for leaf in (x, weight, bias) if leaf is not None]
        outer = [torch.randn_like(y), torch.randn_like(x)]
        ours = torch.autograd.grad([y, again], leaves, outer)
        theirs = torch.autograd.grad([expected, x], leaves, outer)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_every_folder_has_its_three_files() -> None:
    assert len(FOLDERS) == 11
    for folder in FOLDERS:
        files = {path.stem for path in (Path(fused.__file__).parent / folder).glob("*.py")}
        assert files >= {"operation", "reference", "benchmark"}


def test_a_benchmark_says_what_it_measured(capsys: pytest.CaptureFixture[str]) -> None:
    from partavg.engines.fused.linear.benchmark import comparisons

    comparison.main(comparisons, ["--rounds", "2"])
    first, *rest = capsys.readouterr().out.splitlines()
    assert torch.__version__ in first
    assert "workers" in first
    if not device_of(torch.empty(1)).triton:
        assert (
            rest.pop(0) == "There are no kernels for this device: operations are plain torch, too."
        )
    assert len(rest) == 2
    assert all("n = 2" in line and "quartiles" in line for line in rest)
    with pytest.raises(SystemExit):
        comparison.main(comparisons, ["--rounds", "1"])
    assert "too few for quartiles" in capsys.readouterr().err
