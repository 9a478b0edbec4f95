"""The CUDA kernels for few channels, on a CPU: against float64 on the same rounded numbers."""

from functools import partial

import pytest
import torch
from tests.kernels import cuda_on_cpu
from torch import Tensor
from torch.nn import functional as F

from partavg.engines.fused import dispatch
from partavg.engines.fused.convolution import cuda_sources
from partavg.engines.fused.convolution import few_channels_cuda as kernels
from partavg.engines.fused.convolution.case import Case, Window
from partavg.engines.fused.convolution.few_channels_cuda import NormAfter, NormBefore
from partavg.engines.fused.convolution.tiling import Tiling, tiling_of
from partavg.engines.fused.rows import NOWHERE

pytestmark = [
    pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs a C++ compiler"),
    pytest.mark.slow,
]
WORKERS, COUNT = 2, 3  # images, fewer than a tile of the smallest ones holds


@pytest.fixture(autouse=True, params=[False, True], ids=["late copies", "early copies"])
def _on_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    compiled = partial(cuda_on_cpu.compiled, early_copies=request.param)
    monkeypatch.setattr(cuda_sources, "compiled", compiled)
    monkeypatch.setattr(kernels, "processors", lambda device: 1)  # many tiles for a block


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


def tiling(x: Tensor, weight: Tensor, stride: int) -> Tiling:
    rim = weight.shape[-1] // 2
    window = Window((stride, stride), (rim, rim))
    found = tiling_of(Case.of(x.movedim(-1, 2), weight, None, window, gradient=True))
    assert found is not None
    return found


def _in_order(partials: Tensor) -> Tensor:
    """Partial sums [m, n, …] added up one after another."""
    return sum(partials.unbind(1)[1:], partials[:, 0])


def activations(size: int, channels: int) -> Tensor:
    return torch.randn(WORKERS, COUNT, size, size, channels).bfloat16()


def norm(channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, 1 / deviation, weight and bias."""
    mean, weight, bias = (scale * torch.randn(WORKERS, channels) for scale in (0.1, 1, 0.1))
    return mean, torch.rand(WORKERS, channels) + 0.5, weight, bias


def normalized(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, *, relu: bool
) -> Tensor:
    factor = rstd * weight
    y = x.float() * wide(factor) + wide(bias - mean * factor)
    return (F.relu(y) if relu else y).bfloat16()


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

    own = tiling(given, weight, stride)
    rows = F.pad(given, (0, 1)) if inputs == 3 else given
    ahead, back = kernels.pack_weights(weight, own)
    found, partials, pixels = kernels.convolve(rows, ahead, own)
    assert distance(found, y) < 3e-3
    sizes = torch.tensor(
        [min(pixels, y[0, ..., 0].numel() - i * pixels) for i in range(partials.shape[1])]
    )
    mean = (partials[:, :, 0] * sizes[:, None]).sum(1) / sizes.sum()
    assert distance(mean, y.mean((1, 2, 3))) < 1e-4
    room = kernels.Room.of(rows, own, NOWHERE)
    assert distance(kernels.weight_gradient(rows, grad, own, room), dweight) < 1e-6
    if inputs > 3:
        assert distance(kernels.input_gradient(grad, back, own, None, None)[0], dx) < 3e-3


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "added", "relu"),
    [
        (16, 16, 32, False, True),
        (32, 32, 16, True, True),
        (32, 16, 8, False, False),
        (16, 32, 16, True, False),
    ],
)
def test_a_convolution_between_norms(
    inputs: int, outputs: int, size: int, added: bool, relu: bool
) -> None:
    """Forward with inputs normalized on the way, and both gradients in one kernel."""
    norm_before, norm_after = norm(inputs), norm(outputs)
    x, grad = activations(size, inputs), activations(size, outputs)
    weight = 0.1 * torch.randn(WORKERS, outputs, inputs, 3, 3)
    own = tiling(x, weight, 1)
    assert dispatch.both_gradients_at_once(own)
    other = activations(size, inputs) if added else None
    ahead, back = kernels.pack_weights(weight, own)
    before = NormBefore(
        x, normalized(x, *norm_before, relu=relu), *norm_before, added=False, relu=relu
    )
    lazy = before._replace(z=None)
    y = kernels.convolve(before.z, ahead, own)[0]
    assert torch.equal(kernels.convolve(x, ahead, own, lazy)[0], y)

    pixels = grad[0, ..., 0].numel()
    normal = (y.double() - wide(norm_after[0])) * wide(norm_after[1])
    sums = torch.stack([grad.double(), grad.double() * normal], 1).sum((2, 3, 4))
    means = (sums / pixels).unbind(1)
    dy = wide(norm_after[1] * norm_after[2]) * (grad - wide(means[0]) - normal * wide(means[1]))
    z, kernel = before.z.double().requires_grad_(), weight.bfloat16().double().requires_grad_()
    exact = torch.autograd.grad(convolve(z, kernel, 1), (z, kernel), dy.bfloat16().double())
    through = exact[0] if other is None else exact[0] + other
    through = through * (before.z > 0) if relu else through
    along = through * (x.double() - wide(norm_before[0])) * wide(norm_before[1])
    expected = torch.stack([through, along], 1).sum((2, 3, 4))

    shares = torch.rand(9)  # the sums come in parts
    partials = (sums[:, None] * (shares / shares.sum())[:, None, None]).float().contiguous()
    for kind in (before, lazy):
        room = kernels.Room.of(x, own, NOWHERE)
        after = NormAfter(y, partials, *norm_after[:3])
        given = grad, after, back, own, other, kind, room
        dx, found = kernels.both_gradients(*given, affine=True)
        assert distance(dx, through) < 3e-3
        assert distance(found.sum(1), expected) < 1e-3
        assert distance(room.weight, exact[1]) < 1e-3
        assert torch.equal(torch.stack(room.norm[::-1], 1), _in_order(found))
