"""GroupNorm's kernels against float64, by Triton's interpreter: TRITON_INTERPRET=1 pytest."""

import os

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from partavg.core.loop import Batch
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.models.resnet import resnet20

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU", allow_module_level=True)

from partavg.engines.fused import Fused
from partavg.engines.fused.norm import group_norm, reference
from partavg.engines.fused.norm.group_norm import GroupNorm, GroupSettings

SHAPES = (
    *(((2, 3, 16, 8, 8), groups) for groups in (1, 2, 16)),
    *(((2, 2, 20, 5, 7), 4), ((1, 2, 21, 5, 7), 7), ((2, 2, 160, 3, 3), 8)),
    *(((2, 4, 6), 2), ((3, 2, 10, 9), 5), ((1, 1, 7, 1, 1), 1), ((2, 0, 8, 4, 4), 2)),
)


def found(
    shape: tuple[int, ...],
    groups: int,
    given: list[Tensor | None],
    outer: Tensor,
    relu: bool,
    exactly: bool,
) -> list[Tensor]:
    """Outputs and gradients of all that is given: by the kernels, or by torch in float64."""
    leaves = [
        None if t is None else (t.double() if exactly else t.clone()).requires_grad_()
        for t in given
    ]
    x, weight, bias, added = leaves
    if exactly:
        y = reference.group_norm(x, weight, bias, groups, 1e-5, added, relu)
    else:
        y = GroupNorm.apply(x, weight, bias, added, GroupSettings(groups, 1e-5, relu), None)
    assert y.shape == shape
    there = [leaf for leaf in leaves if leaf is not None]
    return [y.detach(), *torch.autograd.grad(y, there, outer.to(y.dtype))]


@pytest.mark.parametrize("tile", [group_norm._TILE, 64])
@pytest.mark.parametrize(("affine", "added", "relu"), [
    ("both", False, True), ("both", True, True), ("weight", True, False), ("none", False, False),
])  # fmt: skip
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
def test_group_norm(
    shape: tuple[int, ...],
    groups: int,
    affine: str,
    added: bool,
    relu: bool,
    tile: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one block or several; far from 0, with channels that differ."""
    monkeypatch.setattr(group_norm, "_TILE", tile)
    torch.manual_seed(0)
    m, _, c, *_ = shape
    x = torch.randn(shape) + 10 * torch.randn(c, *[1] * (len(shape) - 3)) + 30
    given = [
        x,
        torch.randn(m, c) if affine != "none" else None,
        torch.randn(m, c + 3)[:, 3:] if affine == "both" else None,
        torch.randn(shape) if added else None,
    ]
    outer = torch.randn(shape)
    ours, theirs = (found(shape, groups, given, outer, relu, way) for way in (False, True))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_group_norm_in_bf16() -> None:
    """Statistics stay in float32; channels may lie anyhow."""
    torch.manual_seed(0)
    shape = 2, 2, 16, 8, 8
    x, added, outer = torch.randn(3, *shape).bfloat16()
    given = [x + 3, torch.randn(2, 16), torch.randn(2, 16), added.movedim(2, -1).contiguous()]
    given[3] = given[3].movedim(-1, 2)
    ours, theirs = (found(shape, 4, given, outer, True, way) for way in (False, True))
    assert [t.dtype for t in ours] == [torch.bfloat16] * 2 + [torch.float32] * 2 + [torch.bfloat16]
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() <= 0.01 * other.norm()


@pytest.mark.parametrize("samples", [2, 33])
def test_gradients_of_the_layer_go_where_they_are_wanted(samples: int) -> None:
    """Those of more samples than a block has, into rows that have others beside them."""
    torch.manual_seed(0)
    x, outer = torch.randn(2, 2, samples, 20, 3, 3)
    weight, bias = torch.randn(2, 2, 20).requires_grad_()
    rows = torch.full((2, 50), torch.nan)
    into = rows[:, 4:24], rows[:, 25:45]
    y = GroupNorm.apply(x, weight, bias, None, GroupSettings(4, 1e-5, relu=True), into)
    torch.autograd.grad(y, (weight, bias), outer)
    exact = reference.group_norm(x.double(), weight.double(), bias.double(), 4, 1e-5, None, True)
    wanted = torch.autograd.grad(exact, (weight, bias), outer.double())
    for place, gradient in zip(into, wanted, strict=True):
        torch.testing.assert_close(place, gradient, rtol=1e-4, atol=1e-4)
    assert rows.isnan().sum() == 2 * 10


@pytest.mark.slow
def test_a_resnet_with_group_norm() -> None:
    """All kernels of a pass together, against plain torch."""
    torch.manual_seed(0)
    model = RowModel(resnet20((3, 8, 8), 3, norm_groups=4), F.cross_entropy, torch.device("cpu"))
    params, buffers = model.start()
    rows = params + 0.05 * torch.randn(2, len(params)), buffers.repeat(2, 1)
    batch = Batch(torch.randn(2, 2, 3, 8, 8), torch.randint(0, 3, (2, 2)), torch.arange(2))
    ends = []
    for engine in (Looped(model), Fused(model, 2)):
        each = [(part.losses, *(grad for _, grad in part.pieces)) for part in engine(*rows, batch)]
        ends.append([torch.cat(several) for several in zip(*each, strict=True)])
    for one, other in zip(*ends, strict=True):
        assert (one - other).norm() <= 1e-3 * other.norm()
