"""Networks of norms and convolutions with few channels, on the CUDA kernels, on a CPU.

Each step leaves its norm's gradient to the kernel of the convolution before it, where it may.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from tests.kernels import cuda_on_cpu
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from partavg.engines.fused.convolution import cuda_sources, few_channels_cuda, operation
from partavg.engines.fused.dispatch import Device
from partavg.engines.fused.program import Program
from partavg.engines.fused.rows import Rows

pytestmark = [
    pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs a C++ compiler"),
    pytest.mark.slow,
]
WORKERS, COUNT, SIZE = 2, 3, 16


class Layers(nn.Module):
    """Convolutions and norms for a forward pass to be put together from."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, 1, 1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4))

    def step(self, number: int, x: Tensor) -> Tensor:
        """A convolution of what a norm and ReLU make of x."""
        found: Tensor = self.convs[number](F.relu(self.norms[number](x)))
        return found


class Row(Layers):
    def forward(self, x: Tensor) -> Tensor:
        for number in range(3):
            x = self.step(number, x)
        return x


class Residual(Layers):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norms[0](self.convs[0](x)))
        y = self.convs[2](F.relu(self.norms[1](self.convs[1](x))))
        return self.convs[3](F.relu(self.norms[2](y) + x))


class Preactivated(Layers):
    def forward(self, x: Tensor) -> Tensor:
        x = self.convs[0](x)
        x = x + self.step(2, self.step(1, x))
        return self.step(3, x)


class AddedToItself(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = self.step(0, x)
        return self.convs[1](F.relu(self.norms[1](y) + y))


class Again(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.step(0, self.step(0, self.step(0, x)))


class Unused(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](x))
        self.convs[1](y)
        return self.step(2, self.convs[0](y))


class Broadcast(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = self.step(0, x)
        return self.convs[1](F.relu(self.norms[1](y) + y.mean((2, 3), keepdim=True)))


class Frozen(Row):
    def __init__(self) -> None:
        super().__init__()
        self.norms[1].bias.requires_grad_(False)


def _fix_(network: Layers) -> None:
    """Let the norms go by statistics of their own, not by the batch's."""
    for norm in network.norms:
        norm.eval()
        norm.running_mean.copy_(0.3 * torch.randn(16))
        norm.running_var.copy_(0.5 + torch.rand(16))


def _group_(network: Layers, *numbers: int) -> None:
    """Let some norms go by groups of a sample's channels."""
    for number in numbers:
        network.norms[number] = nn.GroupNorm(4, 16)


class GroupedRow(Row):
    def __init__(self) -> None:
        super().__init__()
        _group_(self, 1)


class GroupedResidual(Residual):
    def __init__(self) -> None:
        super().__init__()
        _group_(self, 0, 1, 2)


class GroupedPreactivated(Preactivated):
    def __init__(self) -> None:
        super().__init__()
        _group_(self, 1, 3)


class FixedRow(Row):
    def __init__(self) -> None:
        super().__init__()
        _fix_(self)


class FixedResidual(Residual):
    def __init__(self) -> None:
        super().__init__()
        _fix_(self)


class FixedPreactivated(Preactivated):
    def __init__(self) -> None:
        super().__init__()
        _fix_(self)


NETWORKS = [
    (Row, 2),
    (Residual, 2),
    (Preactivated, 1),
    (AddedToItself, 0),
    (Again, 2),
    (Unused, 1),
    (Broadcast, 0),
    (Frozen, 2),
    (GroupedRow, 0),
    (GroupedResidual, 0),
    (GroupedPreactivated, 0),
    (FixedRow, 2),
    (FixedResidual, 2),
    (FixedPreactivated, 1),
]
"""With the number of convolutions whose gradients one kernel computes."""


def _wide(numbers: Tensor) -> Tensor:
    return numbers[:, None, None, None]


def _normalize(
    x: Tensor, statistics: Any, weight: Tensor, bias: Tensor, residual: Tensor | None,
    settings: Any, y: Tensor | None,
) -> Any:  # fmt: skip
    mean, var = x.float().mean((1, 2, 3)), x.float().var((1, 2, 3), correction=0)
    if settings.fixed:
        mean, squares = statistics.partials.squeeze(1).unbind(1)
        mean, var = mean.contiguous(), squares / statistics.pixels
    rstd = 1 / (var + settings.eps).sqrt()
    if y is not None:
        z = (x.float() - _wide(mean)) * _wide(rstd * weight) + _wide(bias)
        z = z if residual is None else z + residual
        y.copy_(F.relu(z) if settings.relu else z)
    return mean, rstd


def _gradient(norm: Any, grad: Tensor, sums: Tensor, *, into: Any) -> Any:
    total, along = sums.sum(1).unbind(1)
    if into is not None:
        along, total = (own.copy_(one) for own, one in zip(into, (along, total), strict=True))
    pixels = norm.x[0, ..., 0].numel()
    normal = (norm.x.float() - _wide(norm.mean)) * _wide(norm.rstd)
    rest = grad.float() - _wide(total) / pixels - normal * _wide(along) / pixels
    return (_wide(norm.rstd * norm.weight) * rest).bfloat16(), None, along, total


@pytest.fixture(scope="module", autouse=True)
def _on_cpu() -> Iterator[None]:
    """The CUDA kernels, and plain torch in place of Triton, which may be missing."""
    package = "partavg.engines.fused"
    kernels = f"{package}.norm.batch_norm_kernels", f"{package}.convolution.any_channels_kernels"
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("triton") is None:
            for name in ("triton", *kernels):
                patch.setitem(sys.modules, name, MagicMock())
        few_channels = importlib.import_module(f"{package}.convolution.few_channels")
        patch.setattr(few_channels, "normalize", _normalize)
        patch.setattr(few_channels, "gradient", _gradient)
        patch.setattr(few_channels, "measure", lambda x: None)
        hopper = Device(triton=True, cuda=True, hopper=True, compiler=True)
        patch.setattr(operation, "device_of", lambda x: hopper)
        patch.setattr(cuda_sources, "compiled", cuda_on_cpu.compiled)
        patch.setattr(few_channels_cuda, "processors", lambda device: 3)
        yield


def case(network: nn.Module) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Parameters of each worker, inputs, and the gradients of outputs."""
    leaves = {
        name: p.detach() + 0.1 * torch.randn(WORKERS, *p.shape)
        for name, p in network.named_parameters()
        if p.requires_grad
    }
    x, outer = torch.randn(2, WORKERS, COUNT, 16, SIZE, SIZE).bfloat16()
    return leaves, x, outer


def tensors(network: nn.Module, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """All that a pass reads; what is trained follows gradients."""
    state = {n: b.float().expand(WORKERS, *b.shape).clone() for n, b in network.named_buffers()}
    frozen = {n: p.detach().expand(WORKERS, *p.shape) for n, p in network.named_parameters()}
    return {**frozen, **{n: leaf.requires_grad_() for n, leaf in leaves.items()}, **state}


def gradients(network: nn.Module, leaves: dict[str, Tensor], x: Tensor, outer: Tensor) -> Any:
    rows = Rows(tensors(network, leaves), torch.arange(WORKERS), torch.bfloat16)
    y = Program(network)(x, rows)
    found = torch.autograd.grad(y, list(leaves.values()), outer, allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def in_places(network: nn.Module, leaves: dict[str, Tensor], x: Tensor, outer: Tensor) -> Any:
    """The same, written where they are gathered; twice, so that tickets must be zero again."""
    program = Program(network)
    wide = torch.full((WORKERS, 3 + sum(leaf[0].numel() for leaf in leaves.values())), torch.nan)
    sizes = [leaf[0].numel() for leaf in leaves.values()]
    cut = wide[:, 3:].split(sizes, 1)
    views = {n: own.view(leaf.shape) for own, (n, leaf) in zip(cut, leaves.items(), strict=True)}
    places = {name: view for name, view in views.items() if name in program.used_once()}
    tickets = torch.zeros(2 * program.convolutions, 2, WORKERS, dtype=torch.int32)
    for _ in range(2):
        given = tensors(network, leaves), torch.arange(WORKERS), torch.bfloat16
        y = program(x, Rows(*given, places, tickets))
        found = torch.autograd.grad(y, list(leaves.values()), outer, allow_unused=True)
        assert not tickets.any()
    assert wide[:, :3].isnan().all()  # nothing is written beside the places
    return {
        name: (grad, grad is not None and grad.data_ptr() == views[name].data_ptr())
        for name, grad in zip(leaves, found, strict=True)
    }


def exact(network: nn.Module, leaves: dict[str, Tensor], x: Tensor, outer: Tensor) -> Any:
    network = network.double()
    all_found = []
    for worker in range(WORKERS):
        own = {name: leaf[worker].double().requires_grad_() for name, leaf in leaves.items()}
        y = functional_call(network, own, (x[worker].double(),))
        loss = (y * outer[worker]).sum()
        all_found.append(torch.autograd.grad(loss, list(own.values()), allow_unused=True))
    return dict(zip(leaves, zip(*all_found, strict=True), strict=True))


@pytest.mark.parametrize(("made", "together"), NETWORKS, ids=[n.__name__ for n, _ in NETWORKS])
def test_gradients_of_a_network(
    made: type[nn.Module], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network = made()
    leaves, x, outer = case(network)
    started: list[str] = []
    start = few_channels_cuda.start
    monkeypatch.setattr(few_channels_cuda, "start", lambda n, *a: (started.append(n), start(n, *a)))
    found = gradients(network, dict(leaves), x, outer)
    assert started.count("both_gradients") == together
    for name, theirs in exact(network, dict(leaves), x, outer).items():
        ours = found[name]
        if theirs[0] is None:
            assert ours is None, name
        else:
            expected = torch.stack(theirs)
            assert (ours - expected).norm() < 0.2 * expected.norm(), name


@pytest.mark.parametrize("made", [Row, Residual, FixedRow, Frozen, Again])
def test_gradients_are_written_where_they_are_gathered(
    made: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network = made()
    leaves, x, outer = case(network)
    expected = gradients(network, dict(leaves), x, outer)
    once = Program(network).used_once()
    for name, (grad, there) in in_places(network, dict(leaves), x, outer).items():
        if expected[name] is None:
            assert grad is None
            continue
        assert torch.equal(grad, expected[name]), name
        pair = name.rpartition(".")[0] + ".bias"  # a norm's two places are used together
        own = name in once and (name.startswith("convs") or pair in leaves)
        fixed = made is FixedRow and name.startswith("norms")
        assert there == own or fixed, name
