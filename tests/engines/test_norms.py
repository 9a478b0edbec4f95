"""Norms with what follows them as one step: against the loop, and beside convolutions."""

import pytest
import torch
from tests.engines.test_fused import problem, run
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.engines.fused import Fused, dispatch
from partavg.engines.fused.dispatch import Convolution, Device
from partavg.engines.fused.fusion import fused_group_norm
from partavg.engines.fused.norm import reference
from partavg.engines.fused.program import Program
from partavg.engines.looped import Looped
from partavg.models import MODELS


class Blocks(nn.Module):
    """Norms of one kind with all that may follow them; the second layer is called twice."""

    def __init__(self, *norms: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(n, 6, 3, 1, 1, bias=False) for n in (3, 6, 6))
        self.norms = nn.ModuleList(norms)
        self.shift = nn.Parameter(0.5 * torch.randn(6, 1, 1))
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.norms
        x = F.relu(first(self.convs[0](x)))
        y = F.relu(second(self.convs[1](x)))
        x = F.relu(second(input=self.convs[2](y)) + x)
        x = F.relu(third(x) + self.shift)
        x = F.relu(third(x) + x.mean((2, 3), keepdim=True))
        y = third(x)
        found: Tensor = self.linear((y + x).mean((2, 3)) + y.amax((2, 3)))
        return found


class Flat(nn.Module):
    """Norms without pixels, and in a row of them."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.conv = nn.Linear(5, 12), nn.Conv1d(4, 6, 2)
        self.norms = nn.ModuleList([nn.GroupNorm(3, 12), nn.GroupNorm(2, 6)])
        self.norms[1].bias = None
        self.end = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        x = F.relu(self.norms[0](x) + x)
        found: Tensor = self.end(self.norms[1](self.conv(x.view(x.size(0), 4, 3))).flatten(1))
        return found


def group_norms() -> nn.Module:
    frozen = nn.GroupNorm(6, 6)
    frozen.weight.requires_grad_(False)
    return Blocks(nn.GroupNorm(2, 6, eps=0.1), frozen, nn.GroupNorm(1, 6, affine=False))


CASES = {
    "batch norms": (lambda: Blocks(*map(nn.BatchNorm2d, (6, 6, 6))), (3, 5, 7)),
    "group norms": (group_norms, (3, 5, 7)),
    "without pixels": (Flat, (5,)),
    "resnet20": (lambda: MODELS["resnet20"]((3, 8, 8), 3, norm_groups=4), (3, 8, 8)),
}


@pytest.mark.parametrize("name", CASES)
def test_fused_equals_looped(name: str) -> None:
    make, shape = CASES[name]
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        torch.manual_seed(1)
        module = make()
        inputs = torch.Size(shape)
        if len(shape) == 1:  # problem() would make words of them
            module, inputs = nn.Sequential(nn.Flatten(), module), torch.Size((*shape, 1))
        model, *case = problem(module, tuple(inputs), dtype)
        expected = run(Looped(model), *case)
        for chunk in (1, 3, 99):
            for ours, theirs in zip(run(Fused(model, chunk), *case), expected, strict=True):
                assert (ours - theirs).norm() <= tolerance * theirs.norm().clamp(min=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("sizes", [(), (1,), (7,), (3, 5)])
def test_every_group_has_mean_0_and_deviation_1(groups: int, sizes: tuple[int, ...]) -> None:
    x = 3 * torch.randn(2, 3, 6, *sizes, dtype=torch.float64) + 5
    y = reference.group_norm(x, None, None, groups, 0.0, None, False).view(2, 3, groups, -1)
    if y.shape[-1] == 1:
        return
    torch.testing.assert_close(y.mean(-1), torch.zeros_like(y[..., 0]))
    torch.testing.assert_close(y.var(-1, correction=0), torch.ones_like(y[..., 0]))


def test_with_group_norm_nothing_else_of_a_network_changes() -> None:
    """Each norm takes what follows it along, and convolutions stand alone."""
    ours, theirs = (Program(MODELS["resnet20"]((3, 32, 32), 10, norm_groups=g)) for g in (8, 0))
    stand_ins = [node for node in ours._graph.nodes if node.target is fused_group_norm]
    assert len(stand_ins) == len(list(theirs.norms())) == 22
    assert [node.args[3] for node in stand_ins].count(True) == 19  # three are what is added
    assert len(ours._graph.nodes) == len(theirs._graph.nodes)
    assert not list(ours.norms())  # no batches to count
    assert not ours._convs


def test_convolutions_with_few_channels_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = []
    asked = dispatch.convolution
    monkeypatch.setattr(
        dispatch, "convolution", lambda case, device: cases.append(case) or asked(case, device)
    )
    module = MODELS["resnet20"]((3, 32, 32), 3, norm_groups=8)
    model, *case = problem(module, (3, 32, 32), torch.float32, workers=1)
    list(Fused(model, 1, "bf16")(*case))
    hopper = Device(triton=True, cuda=True, hopper=True, compiler=True)
    assert [asked(case, hopper) for case in cases] == [Convolution.FEW_CHANNELS] * 22
