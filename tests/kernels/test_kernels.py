"""Triton's kernels against plain torch, by Triton's interpreter: TRITON_INTERPRET=1 pytest."""

import importlib
import itertools
import os
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from partavg.core.average import consensus
from partavg.core.loop import Batch
from partavg.core.solver import Step
from partavg.data.images import Images
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.losses import next_token
from partavg.models.gpt import gpt
from partavg.solvers.adam import Adam
from partavg.solvers.sgd import SGD

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 or a GPU", allow_module_level=True)

from partavg.engines.fused import Fused
from partavg.engines.fused.channels import channels_first, channels_last
from partavg.engines.fused.comparison import Setting
from partavg.engines.fused.convolution.any_channels import four_channels
from partavg.engines.fused.convolution.many_channels import ManyChannels
from partavg.engines.fused.dispatch import Device
from partavg.engines.fused.dropout import operation as dropout
from partavg.engines.fused.dropout import reference as dropout_reference
from partavg.engines.fused.norm import batch_norm, operation
from partavg.engines.fused.norm.batch_norm import NormSettings
from partavg.engines.fused.norm.parameters import NormParameters
from partavg.engines.fused.pool import operation as pool
from partavg.engines.fused.pool import reference as pool_reference
from partavg.engines.fused.rows import Rows
from partavg.kernels import sums
from partavg.kernels.cast import cast

SPANS = ((3, 10), (100, 2500), (5000, 6000))


def test_sums_of_spans_and_their_way_back() -> None:
    rows, weights = torch.randn(5, 6000), torch.rand(5)
    out = torch.empty(sum(b - a for a, b in SPANS))
    sums.weigh_(out, rows, SPANS, weights)
    torch.testing.assert_close(out, torch.cat([weights @ rows[:, a:b] for a, b in SPANS]))
    expected, place = rows.clone(), 0
    for a, b in SPANS:
        expected[:, a:b] = out[place : place + b - a]
        place += b - a
    sums.spread_(rows, SPANS, out)
    assert torch.equal(rows, expected)


def test_rows_without_columns() -> None:
    """The buffers of a model that has none."""
    assert consensus(torch.ones(3, 0), torch.full((3,), 1 / 3)).shape == (0,)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("affine", [True, False])
def test_fixed_statistics_and_the_way_back(added: bool, affine: bool) -> None:
    torch.manual_seed(0)
    x, residual, outer = torch.randn(3, 2, 5, 16, 6, 6)
    running = 0.3 * torch.randn(2, 16), 0.5 + torch.rand(2, 16)
    given = [x, *torch.randn(2, 2, 16)] if affine else [x]
    given += [residual] if added else []
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    found = []
    for triton in (True, False):
        some = iter(leaves)
        first = next(some)
        weight, bias = (next(some), next(some)) if affine else (None, None)
        other = next(some, None)
        own = NormParameters(weight, bias, *running)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operation, "device_of", lambda x, on=triton: Device(on, on, on, on))
            y, _ = operation.by_fixed_statistics(first, own, 1e-5, other, relu=True)
        found.append([y, *torch.autograd.grad(y, leaves, outer)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


class Before(nn.Module):
    """A norm before a layer, and a shortcut around both."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.start, self.norm, self.end = nn.Linear(5, 20), norm, nn.Linear(20, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.start(x)
        return x + self.end(F.relu(self.norm(x)))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(20), nn.BatchNorm1d(20, affine=False).eval()])
def test_gradients_beside_a_norm_are_added_by_its_kernel(
    norm: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    added, gradient = [], batch_norm.gradient
    monkeypatch.setattr(
        batch_norm, "gradient", lambda *given: added.append(given[3]) or gradient(*given)
    )
    model = RowModel(Before(norm), F.cross_entropy, torch.device("cpu"))
    params, buffers = model.start()
    rows = params + 0.1 * torch.randn(2, len(params)), buffers.repeat(2, 1)
    batch = Batch(torch.randn(2, 6, 5), torch.randint(0, 20, (2, 6)), torch.arange(2))
    found = []
    for engine in (Looped(model), Fused(model, 2)):
        each = [(part.losses, *(grad for _, grad in part.pieces)) for part in engine(*rows, batch)]
        found.append([torch.cat(several) for several in zip(*each, strict=True)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert added
    assert all(beside is not None for beside in added)


def test_others_alone_use_what_a_norm_is_given() -> None:
    x = torch.randn(2, 3, 16, 4, 4, requires_grad=True)
    own = NormParameters(torch.ones(2, 16), torch.zeros(2, 16), None, None)
    again = operation.batch_norm(x, own, 1e-5, None, None, relu=True).x
    (found,) = torch.autograd.grad(again.sum(), x)
    assert torch.equal(found, torch.ones_like(x))


def test_squared_distances() -> None:
    rows, center = torch.randn(5, 2500)[:, 7:], torch.randn(2493)
    torch.testing.assert_close(sums.squares(rows, center), (rows - center).square().sum(0))


def test_statistics_alone_are_those_of_normalizing() -> None:
    x, weight, bias = torch.randn(2, 3, 8, 8, 16), torch.rand(2, 16), torch.randn(2, 16)
    y = torch.empty_like(x)
    found = []
    for into in (y, None):
        running = torch.zeros(2, 16), torch.ones(2, 16)
        settings = NormSettings(running, 1e-5, 0.1, relu=True)
        own = batch_norm.normalize(x, batch_norm.measure(x), weight, bias, None, settings, into)
        found.append(torch.stack([*own, *running]))
    assert torch.equal(*found)
    expected = torch.stack([F.batch_norm(a.movedim(-1, 1), None, None, w, b, True).relu()
                            for a, w, b in zip(x, weight, bias, strict=True)])  # fmt: skip
    torch.testing.assert_close(y, expected.movedim(2, -1))


@pytest.mark.parametrize(
    "folder",
    [
        *("convolution", "norm", "pool", "token_norm", "rotary", "head_loss", "linear"),
        *("recurrent", "dropout"),
    ],
)
def test_operations_equal_their_references(folder: str) -> None:
    """The kernels that need no Hopper."""
    benchmark = importlib.import_module(f"partavg.engines.fused.{folder}.benchmark")
    torch.manual_seed(0)
    setting = Setting(torch.device("cpu"), torch.float32, workers=2, samples=1)
    for each in benchmark.comparisons(setting):
        for one, other in zip(each.run(each.operation), each.run(each.reference), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3, msg=each.title)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7, 6), (2, 2, 130, 3, 1), (2, 3, 20, 9)])
def test_masks_of_dropout_do_not_depend_on_where_channels_lie(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    keys = torch.randint(-(2**62), 2**62, shape[:1])
    given, outer = torch.randn(2, *shape).to(dtype)
    leaf = given.clone().requires_grad_()
    expected = dropout_reference.dropout(F.dropout, leaf, keys, 0.3)
    expected = expected.detach(), *torch.autograd.grad(expected, leaf, outer)
    for last, grad_last in itertools.product((True, False), repeat=2):
        x, grad = (
            channels_first(channels_last(tensor)) if lies_last else tensor
            for tensor, lies_last in ((given, last), (outer, grad_last))
        )
        x = x.detach().requires_grad_()
        y = dropout.run(F.dropout, Rows({}, keys, dtype), "", x, 0.3)
        assert "Keyed" in str(y.grad_fn)
        found = y.detach(), *torch.autograd.grad(y, x, grad)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours, theirs)
            assert ours.stride() == x.stride()


def test_rows_in_another_precision() -> None:
    weight = torch.randn(3, 9000)[:, 5:8405].view(3, 70, 120)
    assert torch.equal(cast(weight, torch.float16), weight.half())


@pytest.mark.parametrize(
    ("by", "args", "size", "ours"),
    [
        (nn.MaxPool2d(2), (), (6, 4), True),
        (nn.MaxPool2d(2, ceil_mode=True), (), (7, 5), True),
        (F.max_pool2d, (2,), (6, 4), True),
        (F.max_pool2d, (2, 2, 0, 1, True), (5, 4), True),
        (F.max_pool2d, (2, 1), (6, 4), False),
        (nn.MaxPool2d(2), (), (7, 4), False),
        (nn.MaxPool2d(3, 2, 1), (), (6, 4), False),
    ],
)
def test_the_largest_of_four(by: Any, args: Any, size: tuple[int, int], ours: bool) -> None:
    given = torch.randn(6, 1, 40, *size)
    given[0, 0, 0, 0, 0] = torch.nan
    given[1, 0, :, :2, :2] = 1.0  # the first of equals gets the gradient
    found = []
    for pooled in (partial(pool.run, by, None, ""), lambda x, *a: by(x[:, 0], *a).unsqueeze(1)):
        x = given.clone().requires_grad_()
        y = pooled(x, *args)
        assert ("MaxPoolByTwo" in str(y.grad_fn)) == (ours and not found)
        y.backward(torch.linspace(0, 1, y.numel()).view(y.shape))
        found.append((y.detach(), x.grad))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.nan_to_num(9.0), other.nan_to_num(9.0))


@pytest.mark.parametrize("shape", [(2, 3, 20, 3, 5), (2, 1, 140, 8, 8), (1, 2, 3, 40, 20)])
def test_the_mean_of_all_pixels(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = channels_first(channels_last(torch.randn(shape))).requires_grad_()
    exact = x.detach().double().requires_grad_()
    outer = torch.randn(*shape[:3], 1, 1)
    y = pool.run(nn.AdaptiveAvgPool2d(1), None, "", x)
    expected = pool_reference.pool(nn.AdaptiveAvgPool2d(1), exact)
    (dx,) = torch.autograd.grad(y, x, outer)
    (exact_dx,) = torch.autograd.grad(expected, exact, outer.double())
    assert "MeanOfPixels" in str(y.grad_fn)
    torch.testing.assert_close(y.double(), expected)
    torch.testing.assert_close(dx.double(), exact_dx)
    assert channels_last(dx).data_ptr() == dx.data_ptr(), "no copy for the layer before it"
    again = pool.run(nn.AdaptiveAvgPool2d(1), None, "", x.detach().contiguous().requires_grad_())
    assert "MeanBackward1" in str(again.grad_fn), "torch's own, where channels do not lie last"


@pytest.mark.parametrize(
    "solver",
    [SGD(), SGD(0.9), SGD(0.9, nesterov=True, weight_decay=0.01), SGD(weight_decay=0.1)],
    ids=str,
)
def test_a_step_of_sgd(solver: SGD, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for plain in (True, False):
        monkeypatch.setattr("partavg.solvers.sgd.uses_triton", lambda x, plain=plain: not plain)
        torch.manual_seed(0)
        params, grads, memory = torch.randn(3, 3, 5000)
        state = {"momentum": memory[:, 100:4000]} if solver.momentum else {}
        solver.step_(params[:, 100:4000], grads[:, 100:4000], state, Step(0.1, torch.ones(3, 1)))
        ends.append(torch.cat([params, memory]))
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize(
    "solver",
    [
        Adam(),
        Adam(weight_decay=0.1, decoupled=True),
        Adam(0.8, 0.95, 1e-3, 0.1),
        Adam(bias_correction=False),
    ],
    ids=str,
)
def test_a_step_of_adam(solver: Adam, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    module = importlib.import_module("partavg.solvers.adam")  # a function has this name, too
    taken = torch.tensor([[1.0], [2.0], [900.0]], dtype=torch.float64)
    for plain in (True, False):
        monkeypatch.setattr(module, "uses_triton", lambda x, plain=plain: not plain)
        torch.manual_seed(0)
        params, grads, mean, square = torch.randn(4, 3, 5000)
        state = {"mean": mean[:, 100:4000], "square": square.square_()[:, 100:4000]}
        solver.step_(params[:, 100:4000], grads[:, 100:4000], state, Step(0.1, taken))
        ends.append(torch.cat([params, mean, square]))
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("options", [{}, {"positions": "learned", "norm": "layer", "bias": True}])
def test_a_gpt(options: dict[str, Any]) -> None:
    """All kernels of a transformer together, against plain torch."""
    torch.manual_seed(0)
    model = RowModel(
        gpt((12,), 20, layers=2, width=16, heads=2, **options), next_token, torch.device("cpu")
    )
    params, buffers = model.start()
    rows = params + 0.05 * torch.randn(2, len(params)), buffers.repeat(2, 1)
    batch = Batch(*torch.randint(0, 20, (2, 2, 2, 10)), torch.arange(2))
    found = []
    for engine in (Looped(model), Fused(model, 2)):
        each = [(part.losses, *(grad for _, grad in part.pieces)) for part in engine(*rows, batch)]
        found.append([torch.cat(several) for several in zip(*each, strict=True)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_norm_that_nobody_uses() -> None:
    from partavg.engines.fused.token_norm.operation import normalize

    x = torch.randn(2, 3, 4, 16, requires_grad=True)
    weight = torch.ones(2, 16, requires_grad=True)
    total, _ = normalize(x, None, weight, None, 1, 1e-5, False)
    (found,) = torch.autograd.grad(total.sum(), [x])
    assert torch.equal(found, torch.ones_like(x))


@pytest.mark.parametrize("normalize", ["channel", "pixel", "none"])
@pytest.mark.parametrize("shape", [(3, 4, 3, 32, 32), (2, 3, 1, 28, 28)])
def test_images(shape, normalize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = torch.randint(0, 256, shape).byte()
    keys = torch.randint(0, 2**62, shape[:1])
    transform = Images.fit(given.flatten(0, 1), normalize=normalize, crop=4, flip=True)
    found = transform(given, keys)
    monkeypatch.setattr("partavg.data.images.uses_triton", lambda x: False)
    torch.testing.assert_close(found, transform(given, keys))


def test_images_with_four_channels() -> None:
    x = torch.randn(2, 3, 3, 40, 32)
    y = four_channels(x)
    assert torch.equal(y[..., :3], x.permute(0, 1, 3, 4, 2))
    assert not y[..., 3].any()


@pytest.mark.parametrize(
    ("count", "inputs", "outputs", "size", "side", "rim"),
    [
        (2, 32, 64, 7, 3, (1, 1)),
        (4, 48, 32, 4, 3, (1, 1)),
        (2, 32, 32, 14, 5, (2, 2)),
        (2, 32, 48, 8, 3, (1, 1)),
        (2, 32, 64, 10, 3, (0, 0)),
        (2, 32, 32, 8, 2, (0, 1)),
        (1, 32, 32, 5, 3, (3, 2)),
    ],
)
def test_convolutions_with_many_channels(
    count: int, inputs: int, outputs: int, size: int, side: int, rim: tuple[int, int]
) -> None:
    x = torch.randn(2, count, inputs, size, size, requires_grad=True)
    flat = torch.randn(2, outputs * inputs * side * side + 8)
    weight = flat[:, 8:].view(2, outputs, inputs, side, side).requires_grad_()
    bias = torch.randn(2, outputs, requires_grad=True)
    given = zip(x, weight, bias, strict=True)
    expected = torch.stack([F.conv2d(*each, 1, rim) for each in given])
    found, again = ManyChannels.apply(x, weight, bias, rim)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    outer, added = torch.randn_like(expected), torch.randn_like(x)
    leaves = x, weight, bias
    ours = torch.autograd.grad([found, again], leaves, [outer, added])
    theirs = torch.autograd.grad([expected, x], leaves, [outer, added])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
