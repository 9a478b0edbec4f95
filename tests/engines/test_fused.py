"""The fused engine against the loop: every model, users' own modules, and what it refuses."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.loop import Batch
from partavg.engines.choose import choose
from partavg.engines.fused import Fused, Uncovered
from partavg.engines.fused.precision import compute_dtype, resolve
from partavg.engines.fused.program import Program
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.models import MODELS, mlp, vgg, wide_resnet

CPU = torch.device("cpu")
SMALL = {
    "cnn": partial(MODELS["cnn"], width=8),
    "lstm": partial(MODELS["lstm"], words=20, width=4),
    "wrn16_8": partial(wide_resnet.wide_resnet, depth=16, width=1),
    "wrn28_10": partial(wide_resnet.wide_resnet, depth=10, width=2),
}


class Shortcut(nn.Module):
    """A user's own block: in-place ReLU, `+=`, shapes, slices, a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1, groups=1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
        self.norm = nn.BatchNorm2d(4, momentum=None)
        self.plain = nn.BatchNorm2d(4, affine=False, track_running_stats=False)
        self.relu = nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        y = self.norm(self.depthwise(x))
        y += F.pad(x[:, :2], (0, 0, 0, 0, 1, 1))
        y = self.plain(self.relu(y)) * self.scale
        y = F.adaptive_avg_pool2d(F.max_pool2d(y, 2), 1)
        return self.linear(F.dropout(y.view(y.size(0), -1), 0.2, self.training))


class Pair(nn.Module):
    """Two LSTM layers, read to the end; padding is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 4, padding_idx=0)
        self.lstm = nn.LSTM(4, 5, num_layers=2)
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(self.embedding(x).transpose(0, 1))
        return self.linear(y[-1])


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    model[1].eval().requires_grad_(False)
    return model.append(nn.Linear(144, 3))


def grouped() -> nn.Module:
    first, second = (nn.Sequential(nn.GroupNorm(4, 8), nn.ReLU()) for _ in range(2))
    convs = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3)
    return nn.Sequential(convs[0], first, convs[1], second, nn.Flatten(), nn.Linear(288, 3))


OWN = {
    "shortcut": (Shortcut, (3, 8, 8)),
    "pair": (Pair, (6,)),
    "frozen": (frozen, (3, 8, 8)),
    "groups": (grouped, (3, 8, 8)),
    "norms": (lambda: mlp((192,), 3, batch_norm=True, dropout=0.5), (3, 8, 8)),
}


def problem(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, workers: int = 4):
    torch.manual_seed(0)
    model = RowModel(module.to(dtype), F.cross_entropy, CPU)
    params, buffers = model.start()
    params = params + 0.05 * torch.randn(workers, len(params), dtype=dtype)
    inputs = torch.randn(workers, 8, *shape, dtype=dtype)
    if len(shape) == 1:
        inputs = inputs.abs().mul(10).long() % 20
    targets = torch.randint(0, 3, (workers, 8))
    batch = Batch(inputs, targets, torch.arange(workers) + 7)
    return model, params, buffers.repeat(workers, 1), batch


def small(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    if name in OWN:
        make, shape = OWN[name]
        return make(), shape
    shape = (6,) if name == "lstm" else (3, 8, 8)
    return SMALL.get(name, MODELS[name])(shape, 3), shape


def run(engine, params: Tensor, buffers: Tensor, batch: Batch) -> list[Tensor]:
    buffers = buffers.clone()
    for _ in range(2):
        found = [(each.losses, list(each.pieces)) for each in engine(params, buffers, batch)]
    grads = [torch.cat([grad for _, grad in pieces], 1) for _, pieces in found]
    return [torch.cat([losses for losses, _ in found]), torch.cat(grads), buffers]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """VGG with few channels: its real ones take seconds."""
    monkeypatch.setattr(vgg, "_STAGES", ((4,), (8,), (8, 8), (16, 16), (16, 16)))


@pytest.mark.parametrize("name", [*sorted(set(MODELS) - {"gpt"}), *OWN])  # see test_transformers
def test_fused_equals_looped(name: str) -> None:
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        model, *case = problem(*small(name), dtype)
        expected = run(Looped(model), *case)
        for chunk in (1, 3, 99):
            for ours, theirs in zip(run(Fused(model, chunk), *case), expected, strict=True):
                assert (ours - theirs).norm() <= tolerance * theirs.norm().clamp(min=1e-6)


@pytest.mark.parametrize("ignored", [-100, 1])
def test_a_last_layer_and_the_loss_of_its_classes_are_one_step(ignored: int) -> None:
    loss = nn.CrossEntropyLoss(ignore_index=ignored)
    model = RowModel(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5)).double(), loss, CPU)
    torch.manual_seed(0)
    params = torch.randn(3, model.params.size, dtype=torch.float64)
    batch = Batch(torch.randn(3, 6, 4).double(), torch.randint(0, 5, (3, 6)), torch.arange(3))
    case = params, params[:, :0], batch
    for ours, theirs in zip(run(Fused(model, 3), *case), run(Looped(model), *case), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    for wrong in (5, -1):
        batch.targets[1, 2] = wrong
        with pytest.raises(IndexError, match=rf"Target {wrong} is out of bounds"):
            run(Fused(model, 3), *case)


def test_cumulative_statistics_go_on_from_the_batches_counted_before() -> None:
    module = Shortcut()
    module.norm.num_batches_tracked.fill_(100)
    model, params, buffers, batch = problem(module, (3, 8, 8), torch.float64)
    buffers += 0.4 * torch.tensor([[0.0], [1], [2], [3]])  # as averages of counters may be
    expected = run(Looped(model), params, buffers, batch)
    for ours, theirs in zip(run(Fused(model, 3), params, buffers, batch), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["resnet20", "shortcut"])
def test_half_of_the_workers_beside_the_others(name: str) -> None:
    model, params, buffers, batch = problem(*small(name), torch.float64, workers=5)
    found = []
    for way in (Fused._halves, Fused._pass):
        statistics = buffers.clone()
        losses, pieces = way(Fused(model, 5), params, statistics, batch)
        grads = torch.cat([grads for _, grads in pieces], 1)
        assert grads.shape == params.shape
        found.append(torch.cat([losses[:, None], grads, statistics], 1))
    torch.testing.assert_close(*found)


def test_parameters_that_are_used_twice_are_noticed() -> None:
    class Twice(nn.Module):
        def __init__(self, how: str) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.how = how
            if how == "tied":
                self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            x = self.b(self.a(x))
            if self.how == "again":
                return self.a(x)
            return x + self.a.weight.sum() if self.how == "alone" else x

    found = {
        how: Program(Twice(how)).shares_parameters for how in ("once", "again", "tied", "alone")
    }
    assert found == {"once": False, "again": True, "tied": True, "alone": True}


def test_networks_whose_kernels_end_soon() -> None:
    names = ("cnn", "mlp", "resnet20", "wrn16_8")
    assert [n for n in names if Program(MODELS[n]((3, 32, 32), 10)).has_short_kernels] == [
        "resnet20"
    ]


@pytest.mark.parametrize("name", ["cnn", "lstm", "mlp", "wrn28_10", "shortcut"])
def test_fifty_steps_end_at_the_same_weights(name: str) -> None:
    model, params, buffers, batch = problem(*small(name), torch.float64, workers=2)
    ends = []
    for engine in (Looped(model), Fused(model, 2)):
        rows, statistics = params.clone(), buffers.clone()
        for _ in range(50):
            for found in engine(rows, statistics, batch):
                for columns, grads in found.pieces:
                    rows[found.rows, columns] -= 0.01 * grads
        ends.append(torch.cat([rows, statistics], 1))
    torch.testing.assert_close(*ends, rtol=1e-7, atol=1e-9)


class Pools(nn.Module):
    """ReLU before max pooling: with the values alone, and where its output is used twice."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(x), 3, 2, 1)
        y = torch.relu(x)
        return (F.max_pool2d(y, 2) + F.avg_pool2d(y, 2)).flatten(1)


def test_pooling_comes_before_relu() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), Pools())
    model, *case = problem(module, (3, 16, 16), torch.float64)
    for ours, theirs in zip(run(Fused(model, 9), *case), run(Looped(model), *case), strict=True):
        torch.testing.assert_close(ours, theirs)
    graph = [str(node.target) for node in Program(module)._graph.nodes]
    assert graph.index("2") < graph.index("1")
    assert sum("relu" in target for target in graph) == 2


class Named(nn.Module):
    """An argument with the name of a method; pooling without channels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 3)

    def forward(self, relu: Tensor) -> Tensor:
        return self.linear(F.max_pool2d(relu, 2).flatten(1))


def test_pooling_of_the_input() -> None:
    model, params, buffers, batch = problem(Named(), (8, 8), torch.float64)
    for ours, theirs in zip(
        run(Fused(model, 9), params, buffers, batch),
        run(Looped(model), params, buffers, batch),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_any_loss_that_vmap_can_run_works() -> None:
    model, *case = problem(mlp((192,), 3), (3, 8, 8), torch.float64)
    model.criterion = lambda outputs, targets: (outputs.logsumexp(1) - targets).square().mean()
    for ours, theirs in zip(run(Fused(model, 9), *case), run(Looped(model), *case), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_bf16_is_close_and_keeps_full_gradients() -> None:
    model, *case = problem(*small("resnet20"), torch.float32)
    losses, grads, buffers = run(Fused(model, 9, "bf16"), *case)
    expected = run(Looped(model), *case)
    assert grads.dtype == buffers.dtype == torch.float32
    assert (losses - expected[0]).norm() < 0.05 * expected[0].norm()
    assert torch.nn.functional.cosine_similarity(grads.flatten(), expected[1].flatten(), 0) > 0.8


class Uses(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


class Replaces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + x.mean(0)
        return self.layer(x)


@pytest.mark.parametrize(
    ("module", "phrase"),
    [
        (nn.Sequential(nn.Linear(5, 3), nn.RReLU()), r"layer 1 \(RReLU\) is not covered"),
        (Uses(torch.cumsum), "cannot be traced|cumsum is not covered"),
        (Uses(lambda y: y + torch.randn_like(y)), "function randn_like is not covered"),
        (Uses(lambda y: y.erf()), "method erf is not covered"),
        (Uses(lambda y: y if y.sum() > 0 else -y), "cannot be traced"),
        (Uses(lambda y: y + F.relu(y, inplace=True)), "changes a value in place that is used"),
        (Replaces(), "replaces its buffers"),
        (nn.Linear(5, 3).bfloat16(), "torch.bfloat16 are not covered"),
        (nn.Sequential(nn.LSTM(5, 3, 2, dropout=0.5)), r"layer 0 \(LSTM\) is not covered"),
    ],
)
def test_what_is_not_covered_is_named(module: nn.Module, phrase: str) -> None:
    with pytest.raises(Uncovered, match=phrase):
        Fused(RowModel(module, F.cross_entropy, CPU), 2)


def test_choice_by_name() -> None:
    model, _, _, batch = problem(mlp((192,), 3), (3, 8, 8), torch.float32)
    choice = choose("fused", 0, model, model.start(), batch, deterministic=True)
    assert choice[:2] == ("fused", 4)
    assert (choice.precision, choice.deterministic) == ("fp32", True)
    assert isinstance(choice.build(model), Fused)
    model, _, _, batch = problem(Uses(lambda y: y.erf()), (5,), torch.float32)
    batch = batch._replace(inputs=batch.inputs.float())
    with pytest.raises(ValueError, match=r"engine fused cannot run this model: method erf .*; use"):
        choose("fused", 0, model, model.start(), batch)


def test_a_precision_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, _, batch = problem(mlp((192,), 3), (3, 8, 8), torch.float32)

    def fails(*_: object) -> None:
        raise RuntimeError("too little shared memory\nand more")

    monkeypatch.setattr("partavg.engines.choose._fitting", fails)
    with pytest.raises(ValueError, match=r"in bf16: too little shared memory; use engine vmapped"):
        choose("fused", 0, model, model.start(), batch, precision="bf16")


def test_precision() -> None:
    assert resolve("auto", torch.float32, CPU) == "fp32"
    assert resolve("bf16", torch.float32, CPU) == "bf16"
    assert compute_dtype("bf16", torch.float64) == torch.float64
    assert compute_dtype("tf32", torch.float32) == torch.float32


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk 0 is below 1"):
        Fused(RowModel(nn.Linear(2, 2), F.cross_entropy, CPU), 0)


@pytest.mark.parametrize(
    ("widths", "places"),
    [
        ((8, 16, 4), ["0.weight", "2.weight"]),
        ((8, 16, 3), []),  # rows of 195 numbers: every other one lies askew
        ((8, 6, 2), ["0.weight"]),  # rows of 68, but the second weights begin after 54
    ],
)
def test_gradients_of_products_go_where_rows_are_aligned(
    widths: tuple[int, int, int], places: list[str]
) -> None:
    first, hidden, last = widths
    network = nn.Sequential(nn.Linear(first, hidden), nn.ReLU(), nn.Linear(hidden, last))
    assert Fused(RowModel(network, F.cross_entropy, CPU), 2)._places == places


def test_there_are_tickets_for_all_rows_that_come() -> None:
    engine = Fused(RowModel(MODELS["resnet20"]((3, 8, 8), 3), F.cross_entropy, CPU), 9)
    for rows, there in ((2, 2), (5, 5), (3, 5)):
        engine._keep_tickets(rows)
        assert engine._tickets is not None
        assert engine._tickets.shape[1:] == (2, there)
        assert not engine._tickets.any()
