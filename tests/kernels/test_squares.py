"""The CUDA kernels for warp groups, on a CPU: against float64 on the same rounded numbers."""

import copy
from functools import partial

import pytest
import torch
from tests.kernels import cuda_on_cpu
from tests.kernels.test_cuda import convolve, distance
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.engines.fused.convolution import cuda_sources, operation
from partavg.engines.fused.convolution import squares_cuda as kernels
from partavg.engines.fused.convolution.case import Case, Window
from partavg.engines.fused.convolution.squares import InSquares
from partavg.engines.fused.convolution.squares_cuda import Squares
from partavg.engines.fused.dispatch import Device
from partavg.engines.fused.program import Program
from partavg.engines.fused.rows import Rows

pytestmark = [
    pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs a C++ compiler"),
    pytest.mark.slow,
]


LATE, EARLY = False, True  # copies arrive when they are waited for, or at once


@pytest.mark.parametrize(
    ("inputs", "outputs", "height", "width", "stride", "count", "processors", "copies"),
    [
        (160, 128, 8, 8, 1, 3, 1, LATE),
        (128, 160, 16, 8, 2, 3, 2, LATE),
        (128, 160, 16, 8, 2, 3, 2, EARLY),
        (128, 256, 8, 16, 1, 1, 132, LATE),
    ],
)
def test_convolutions(
    inputs: int,
    outputs: int,
    height: int,
    width: int,
    stride: int,
    count: int,
    processors: int,
    copies: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    compiled = partial(cuda_on_cpu.compiled, early_copies=copies)
    monkeypatch.setattr(cuda_sources, "compiled", compiled)
    monkeypatch.setattr(kernels, "processors", lambda device: processors)
    x = torch.randn(2, count, height, width, inputs).bfloat16()
    weight = 0.1 * torch.randn(2, outputs, inputs, 3, 3)
    exact_x, kernel = x.double().requires_grad_(), weight.bfloat16().double().requires_grad_()
    y = convolve(exact_x, kernel, stride)
    grad, added = torch.randn(y.shape).bfloat16(), torch.randn(x.shape).bfloat16()
    dx, dweight = torch.autograd.grad(y, (exact_x, kernel), grad.double())

    window = Window((stride, stride), (1, 1))
    case = Case.of(x.movedim(-1, 2), weight, None, window, gradient=True)
    own = Squares.of(case)
    assert own is not None
    given = x.movedim(-1, 2).requires_grad_(), weight.requires_grad_()
    found, inputs_again = InSquares.apply(*given, own, None)
    outer = grad.movedim(-1, 2), added.movedim(-1, 2)
    grads = torch.autograd.grad((found, inputs_again), given, outer)
    assert distance(found.movedim(2, -1), y) < 3e-3
    assert distance(grads[0].movedim(2, -1), dx + added) < 3e-3
    assert distance(grads[1], dweight) < 1e-5


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations take these kernels."""
    torch.manual_seed(0)
    hopper = Device(triton=True, cuda=True, hopper=True, compiler=True, groups=True)
    monkeypatch.setattr(cuda_sources, "compiled", cuda_on_cpu.compiled)
    monkeypatch.setattr(kernels, "processors", lambda device: 132)
    monkeypatch.setattr(operation, "device_of", lambda x: hopper)


class Block(nn.Module):
    """Sums of which one is made where the convolution is, and four are not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(128, 128, 3, padding=1, bias=False)
        self.scale = nn.Parameter(torch.ones(128, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        y = x + self.conv(x)  # nothing else needs what comes out
        late = self.conv(y)
        late = late + y.tanh()  # known when it is too late
        twice = self.conv(late)
        twice = twice + (twice + self.scale)  # used twice, and what is added has another shape
        return twice + (x.size(0) + self.conv(x))  # a number


@pytest.mark.usefixtures("on_hopper")
def test_additions_where_convolutions_are(monkeypatch: pytest.MonkeyPatch) -> None:
    block, seen = Block(), []
    with torch.no_grad():
        block.conv.weight.mul_(0.5)
    convolve = kernels.convolve
    monkeypatch.setattr(
        kernels,
        "convolve",
        lambda *given: (seen.append(given[-1] is not None), convolve(*given))[1],
    )
    x = torch.randn(2, 8, 8, 128).bfloat16().movedim(-1, 1)
    tensors = {name: p.detach()[None].requires_grad_() for name, p in block.named_parameters()}
    y = Program(block)(x[None], Rows(tensors, torch.zeros(1, dtype=torch.long), torch.bfloat16))
    exact = copy.deepcopy(block).double()
    expected = exact(x.double())
    outer = torch.randn_like(expected)
    found = torch.autograd.grad(y, tuple(tensors.values()), outer[None].to(y.dtype))
    wanted = torch.autograd.grad(expected, tuple(exact.parameters()), outer)
    assert seen == [True, False, False, False]
    assert distance(y[0], expected) < 1e-2
    for ours, theirs in zip(found, wanted, strict=True):
        assert distance(ours[0], theirs) < 2e-2


@pytest.mark.usefixtures("on_hopper")
def test_as_the_operation_calls_them() -> None:
    """Without a gradient to add; of weights that are frozen; of inputs alone, used beside it."""
    x = torch.randn(1, 1, 8, 8, 128).bfloat16().movedim(-1, 2).requires_grad_()
    weight = 0.1 * torch.randn(1, 128, 128, 3, 3)
    y, again, *_ = operation.convolve(x, weight, None, Window(padding=(1, 1)))
    assert again is not None
    outer = torch.randn_like(y)
    exact_x, kernel = x.detach().double().requires_grad_(), weight.bfloat16().double()
    exact = F.conv2d(exact_x[0], kernel[0], padding=1)[None]
    (dx,) = torch.autograd.grad(y, x, outer, retain_graph=True)
    assert distance(y, exact) < 3e-3
    assert distance(dx, torch.autograd.grad(exact, exact_x, outer.double())[0]) < 3e-3
    (beside,) = torch.autograd.grad(again, x, torch.ones_like(again))
    assert torch.equal(beside, torch.ones_like(x))
