"""The CUDA kernels for few channels, on a CPU: against float64 on the same rounded numbers."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from tests.kernels import cuda_on_cpu
from torch import Tensor
from torch.nn import functional as F

from partavg.engines.fused import conv_cuda, tiles
from partavg.engines.fused.conv_cuda import After, Gate

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs a C++ compiler")
WORKERS, COUNT = 2, 3  # images, fewer than a tile of the smallest ones holds


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(conv_cuda, "_compiled", cuda_on_cpu.compiled)
    monkeypatch.setattr(conv_cuda, "_processors", lambda device: 3)  # several tiles for a block


def distance(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


def wide(numbers: Tensor) -> Tensor:
    """Numbers for each worker and channel beside [m, n, h, w, c]."""
    return numbers[:, None, None, None]


def convolve(z: Tensor, weight: Tensor, stride: int) -> Tensor:
    padding = weight.shape[-1] // 2
    found = [
        F.conv2d(own.movedim(-1, 1), kernel, None, stride, padding).movedim(1, -1)
        for own, kernel in zip(z, weight, strict=True)
    ]
    return torch.stack(found)


def activations(size: int, channels: int) -> Tensor:
    return torch.randn(WORKERS, COUNT, size, size, channels).bfloat16()


def norm(channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, 1 / deviation, weight and bias."""
    mean, weight, bias = (scale * torch.randn(WORKERS, channels) for scale in (0.1, 1, 0.1))
    return mean, torch.rand(WORKERS, channels) + 0.5, weight, bias


def normalized(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    factor = rstd * weight
    return F.relu(x.float() * wide(factor) + wide(bias - mean * factor)).bfloat16()


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "side", "stride"),
    [
        (3, 16, 32, 3, 1),
        (16, 16, 32, 3, 1),
        (16, 32, 32, 3, 2),
        (32, 64, 16, 1, 2),
        (64, 64, 8, 3, 1),
    ],
)
def test_convolutions(inputs: int, outputs: int, size: int, side: int, stride: int) -> None:
    given = activations(size, inputs)
    weight = 0.1 * torch.randn(WORKERS, outputs, inputs, side, side)
    x, kernel = given.double().requires_grad_(), weight.bfloat16().double().requires_grad_()
    y = convolve(x, kernel, stride)
    grad = torch.randn(y.shape).bfloat16()
    dx, dweight = torch.autograd.grad(y, (x, kernel), grad.double())

    own = tiles.tiling(given, weight, stride, (side // 2, side // 2))
    assert own is not None
    rows = F.pad(given, (0, 1)) if inputs == 3 else given
    ahead, back = conv_cuda.pack(weight, own)
    found, pieces, pixels = conv_cuda.convolve(rows, ahead, own)
    assert distance(found, y) < 3e-3
    sizes = torch.tensor(
        [min(pixels, y[0, ..., 0].numel() - i * pixels) for i in range(pieces.shape[1])]
    )
    mean = (pieces[:, :, 0] * sizes[:, None]).sum(1) / sizes.sum()
    assert distance(mean, y.mean((1, 2, 3))) < 1e-4
    assert distance(conv_cuda.weight_gradient(rows, grad, own), dweight) < 1e-6
    if inputs > 3:
        assert distance(conv_cuda.input_gradient(grad, back, own, None, None)[0], dx) < 3e-3


@pytest.mark.parametrize(("inputs", "outputs", "size"), [(16, 16, 32), (32, 32, 16), (32, 16, 8)])
@pytest.mark.parametrize("added", [False, True])
def test_a_convolution_between_norms(inputs: int, outputs: int, size: int, added: bool) -> None:
    before, after = norm(inputs), norm(outputs)
    x, grad = activations(size, inputs), activations(size, outputs)
    weight = 0.1 * torch.randn(WORKERS, outputs, inputs, 3, 3)
    own = tiles.tiling(x, weight, 1, (1, 1))
    assert own is not None
    assert tiles.both(own)
    other = activations(size, inputs) if added else None
    z = normalized(x, *before)
    ahead, back = conv_cuda.pack(weight, own)
    y = conv_cuda.convolve(z, ahead, own)[0]
    lazy = Gate(x, None, *before, added=False, relu=True)
    assert torch.equal(conv_cuda.convolve(x, ahead, own, lazy)[0], y)

    pixels = grad[0, ..., 0].numel()
    normal = (y.double() - wide(after[0])) * wide(after[1])
    sums = torch.stack([grad.double(), grad.double() * normal]).sum((2, 3, 4)).movedim(0, 1)
    dy = wide(after[1] * after[2]) * (
        grad - wide(sums[:, 0]) / pixels - normal * wide(sums[:, 1]) / pixels
    )
    gate = Gate(x, z, *before, added=False, relu=True)
    dx, partial = conv_cuda.input_gradient(dy.bfloat16(), back, own, other, gate)[:2]
    dweight = conv_cuda.weight_gradient(z, dy.bfloat16(), own)

    shares = torch.rand(9)  # the sums in pieces
    pieces = (sums[:, None] * (shares / shares.sum())[:, None, None]).float().contiguous()
    for kind in (gate, lazy):
        found = conv_cuda.both_gradients(grad, After(y, pieces, *after[:3]), back, own, other, kind)
        assert distance(found[0], dx) < 1e-3
        assert distance(found[1].sum(1), partial.sum(1)) < 1e-4
        assert distance(found[2].sum(0), dweight) < 1e-4


class Chain:
    """Convolutions after norms; what the first norm gives is added at the third."""

    def __init__(self, small: Any, length: int) -> None:
        self.small, self.length = small, length
        self.layers = [
            (*norm(16)[2:], 0.1 * torch.randn(WORKERS, 16, 16, 3, 3)) for _ in range(length)
        ]
        self.x = activations(32, 16)
        self.grad = activations(32, 16)

    def leaves(self, dtype: torch.dtype) -> list[Tensor]:
        rows = self.x.to(dtype).requires_grad_()
        kind = torch.float32 if dtype == torch.bfloat16 else dtype
        return [rows, *(t.to(kind).requires_grad_() for layer in self.layers for t in layer)]

    def ours(self, *, alone: bool) -> list[Tensor]:
        leaves = self.leaves(torch.bfloat16)
        x, measured, kept = leaves[0].movedim(-1, 2), None, None
        for i in range(self.length):
            gamma, beta, weight = leaves[1 + 3 * i : 4 + 3 * i]
            own = tiles.tiling(self.x, weight, 1, (1, 1))
            residual = kept if i == 2 else None
            normed = self.small.Normed(
                x, gamma, beta, residual, None, 1e-5, 0.1, True, measured, alone and i == 1
            )
            x, inputs, measured = self.small.conv(normed, weight, own)
            kept = inputs if i == 0 else kept
        return list(torch.autograd.grad(x, leaves, self.grad.movedim(-1, 2)))

    def exact(self) -> list[Tensor]:
        leaves = self.leaves(torch.float64)
        x, kept = leaves[0], torch.zeros(())
        for i in range(self.length):
            gamma, beta, weight = leaves[1 + 3 * i : 4 + 3 * i]
            mean, var = x.mean((1, 2, 3)), x.var((1, 2, 3), correction=0)
            z = (x - wide(mean)) * wide(gamma / (var + 1e-5).sqrt()) + wide(beta)
            z = F.relu(z + kept if i == 2 else z)
            kept = z if i == 0 else kept
            x = convolve(z, weight, 1)
        return list(torch.autograd.grad(x, leaves, self.grad.double()))


def _normalize(
    x: Tensor, measured: Any, weight: Tensor, bias: Tensor, residual: Tensor | None, running: Any,
    eps: float, momentum: float, relu: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    mean, rstd = _statistics(x, measured, running, eps, momentum)
    y = (x.float() - wide(mean)) * wide(rstd * weight) + wide(bias)
    y = F.relu(y if residual is None else y + residual)
    return y.bfloat16(), mean, rstd


def _statistics(
    x: Tensor, measured: Any, running: Any, eps: float, momentum: float
) -> tuple[Tensor, Tensor]:
    mean, var = x.float().mean((1, 2, 3)), x.float().var((1, 2, 3), correction=0)
    return mean, 1 / (var + eps).sqrt()


def _gradient(
    x: Tensor, y: None, grad: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor,
    partial: Tensor, *, added: bool, relu: bool,
) -> tuple[Tensor, None, Tensor, Tensor]:  # fmt: skip
    total, along = partial.sum(1).unbind(1)
    pixels = x[0, ..., 0].numel()
    normal = (x.float() - wide(mean)) * wide(rstd)
    rest = grad.float() - wide(total) / pixels - normal * wide(along) / pixels
    return (wide(rstd * weight) * rest).bfloat16(), None, along, total


@pytest.fixture(scope="module")
def small() -> Iterator[Any]:
    """The module, with plain torch in place of Triton, which may be missing."""
    package = "partavg.engines.fused"
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("triton") is None:
            for name in ("triton", f"{package}.norm_kernels", f"{package}.conv_kernels"):
                patch.setitem(sys.modules, name, MagicMock())
        module = importlib.import_module(f"{package}.small")
        patch.setattr(module, "normalize", _normalize)
        patch.setattr(module, "statistics", _statistics)
        patch.setattr(module, "gradient", _gradient)
        patch.setattr(module, "measure", lambda x: None)
        yield module


@pytest.mark.parametrize(("length", "alone"), [(3, False), (3, True), (2, True)])
def test_norms_and_convolutions_in_a_chain(
    small: Any, length: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leaves its norm's gradient to the kernel of the convolution before it."""
    chain = Chain(small, length)
    exact = chain.exact()
    started: list[str] = []
    start = conv_cuda._start
    monkeypatch.setattr(conv_cuda, "_start", lambda n, *a: (started.append(n), start(n, *a)))
    together = chain.ours(alone=alone)
    assert started.count("back") == length - 1  # not for the last, whose outputs no norm follows
    started.clear()
    monkeypatch.setattr(tiles, "both", lambda own: False)
    apart = chain.ours(alone=alone)
    assert "back" not in started
    for ours, theirs, expected in zip(together, apart, exact, strict=True):
        assert distance(ours, expected) < 1.2 * distance(theirs, expected) + 1e-3
        assert distance(ours, expected) < 0.2  # sums over many bf16 numbers of both signs
