"""Estimates on a model whose constants are known in closed form, in float64."""

import math

import pytest
import torch
from tests import tasks
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import build
from partavg.core.cuts import contiguous, whole
from partavg.core.partition import Partition, Span
from partavg.engines.model import RowModel
from partavg.models.lstm import lstm
from partavg.theory import Spread, estimate

WORKERS, OWNED, SIZE, BATCH = 6, 40, 9, 8
CURVATURE = torch.tensor([1.0, 2.0, 5.0, 0.5, 3.0, 1.0, 0.1, 0.2, 0.7], dtype=torch.float64)
PARTS = Partition(SIZE, ((Span(0, 3),), (Span(3, 6),), (Span(6, 9),)))


class Point(nn.Module):
    """Parameters and nothing else: the loss ½ mean (x − s)ᵀ diag(a) (x − s) over samples s."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.linspace(-1, 1, SIZE, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x - inputs


class OnlyOnce(torch.autograd.Function):
    """The identity; its gradient cannot be differentiated."""

    @staticmethod
    def forward(ctx: object, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


class RoughPoint(Point):
    def forward(self, inputs: Tensor) -> Tensor:
        return OnlyOnce.apply(self.x) - inputs


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs**2 @ CURVATURE).mean()


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, list[Tensor]]:
    """Samples [n, d] around another center for each worker, and who owns which."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(WORKERS, 1, SIZE, generator=generator, dtype=torch.float64)
    around = torch.randn(WORKERS, OWNED, SIZE, generator=generator, dtype=torch.float64)
    split = list(torch.arange(WORKERS * OWNED).view(WORKERS, OWNED))
    return (centers + 0.5 * around).flatten(0, 1), split


def per_part(columns: Tensor) -> list[float]:
    return [float(columns[start:stop].sum()) for ((start, stop),) in PARTS.parts]


def test_known_constants_are_recovered(data: tuple[Tensor, list[Tensor]]) -> None:
    samples, split = data
    p = torch.tensor([0.1, 0.1, 0.2, 0.2, 0.3, 0.1], dtype=torch.float64)
    model = Point()
    before = model.x.detach().clone()
    found = estimate(
        model,
        loss,
        (samples, samples[:, 0]),
        split,
        partition=PARTS,
        batch=BATCH,
        weights=p,
        batches=32,
        roughness_of=WORKERS,
        engine="vmapped",
    )
    assert torch.equal(model.x.detach(), before)
    assert found.smoothness.largest == pytest.approx(5, rel=1e-3)
    for spread, expected in zip(found.part_smoothness, (5, 3, 0.7), strict=True):
        assert spread.low <= spread.largest == pytest.approx(expected, rel=1e-3)

    own = samples.view(WORKERS, OWNED, SIZE)
    # A mini-batch is drawn without replacement: its mean has this much of the samples' variance.
    share = (OWNED - BATCH) / (OWNED - 1) / BATCH
    noise = CURVATURE**2 * own.var(1, correction=0) * share
    for part, spread in enumerate(found.variance):
        truth = [per_part(worker)[part] for worker in noise]
        assert spread.low <= sum(truth) / WORKERS <= spread.high
        assert max(truth) <= 1.2 * spread.largest
        assert spread.largest <= 2 * max(truth)

    gradients = CURVATURE * (before - own.mean(1))
    joint = p @ gradients
    between = per_part(p @ (gradients - joint) ** 2)
    local, whole_gradient = per_part(p @ gradients**2), per_part(joint**2)
    assert found.local == pytest.approx(local, rel=0.03)
    assert found.joint == pytest.approx(whole_gradient, rel=0.1, abs=0.02)
    for spread, expected in zip(found.dissimilarity, between, strict=True):
        assert 0.97 * spread.low <= expected <= 1.03 * spread.largest
    assert found.loss == pytest.approx(float(p @ loss_of(before, own)), rel=0.03)
    assert found.amplification == pytest.approx(sum(local) / sum(whole_gradient), rel=0.1)


def loss_of(x: Tensor, own: Tensor) -> Tensor:
    return 0.5 * ((x - own) ** 2 @ CURVATURE).mean(1)


def test_constants_from_estimates(data: tuple[Tensor, list[Tensor]]) -> None:
    samples, split = data
    found = estimate(
        Point(),
        loss,
        (samples, samples[:, 0]),
        split,
        partition=PARTS,
        batch=BATCH,
        engine="looped",
    )
    plain, apart = found.constants(), found.constants(coupled=False, floor=0.5)
    assert plain.smoothness == (found.smoothness.largest,) * 3
    assert apart.smoothness == tuple(spread.largest for spread in found.part_smoothness)
    assert apart.gap == pytest.approx(plain.gap - 0.5)
    ample = found.constants(amplification=found.amplification)
    for before, after, joint in zip(
        plain.dissimilarity, ample.dissimilarity, found.joint, strict=True
    ):
        assert after == pytest.approx(max(0, before - (found.amplification - 1) * joint), abs=1e-12)


def test_whole_batches_have_no_noise(data: tuple[Tensor, list[Tensor]]) -> None:
    samples, split = data
    layout = RowModel(Point(), loss, torch.device("cpu")).params
    found = estimate(
        Point(),
        loss,
        (samples, samples[:, 0]),
        split,
        partition=whole(layout, 1),
        batch=OWNED,
        repeats=2,
        batches=2,
        engine="looped",
    )
    assert found.variance[0].largest == pytest.approx(0, abs=1e-20)
    assert found.dissimilarity[0].low == pytest.approx(found.dissimilarity[0].largest)


@pytest.mark.parametrize("method", ["auto", "difference"])
def test_differences_of_gradients_where_there_is_no_second_derivative(
    method: str, data: tuple[Tensor, list[Tensor]]
) -> None:
    samples, split = data
    settings = {
        "partition": PARTS,
        "repeats": 1,
        "engine": "looped",
        "roughness_of": 2,
        "batches": 2,
    }
    task = RoughPoint(), loss, (samples, samples[:, 0]), split
    found = estimate(*task, method=method, **settings)
    assert found.smoothness.largest == pytest.approx(5, rel=1e-3)
    assert found.part_smoothness[2].largest == pytest.approx(0.7, rel=1e-3)
    with pytest.raises(ValueError, match=r"cannot be differentiated twice: .*; use method diff"):
        estimate(*task, method="hessian", **settings)


@pytest.mark.parametrize("kinks", [False, True])
def test_differences_agree_with_the_hessian_but_also_see_kinks(kinks: bool) -> None:
    data = tasks.data()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bend = nn.ReLU() if kinks else nn.Tanh()
        model = nn.Sequential(nn.Linear(5, 6), bend, nn.Linear(6, 3))
    layout = RowModel(model, F.cross_entropy, torch.device("cpu")).params
    exact, differences = (
        estimate(
            model,
            F.cross_entropy,
            data.train,
            [torch.arange(120)],
            partition=whole(layout, 1),
            repeats=1,
            engine="looped",
            method=method,
        ).smoothness.largest
        for method in ("hessian", "difference")
    )
    assert differences == pytest.approx(exact, rel=0.02) if not kinks else differences > exact


def test_networks_with_normalization_dropout_and_recurrence() -> None:
    data = tasks.data()
    config = tasks.config()
    simulation = build.simulation(config, data, torch.device("cpu"))
    settings = {"batch": 5, "repeats": 1, "batches": 4, "roughness_of": 2, "engine": "looped"}
    split = build.split(config, data)
    task = simulation.consensus(), F.cross_entropy, data.train, split
    found = estimate(*task, partition=simulation.partition, **settings)
    again = estimate(*task, partition=simulation.partition, **settings)
    assert found == again, "the same seed, the same numbers"
    assert found.smoothness.largest >= max(s.largest for s in found.part_smoothness) * 0.9

    with torch.random.fork_rng():
        torch.manual_seed(0)
        words = lstm((6,), 2, words=20, width=4)
    sentences = torch.randint(20, (40, 6), generator=torch.Generator().manual_seed(0))
    layout = RowModel(words, F.cross_entropy, torch.device("cpu")).params
    read = estimate(
        words,
        F.cross_entropy,
        (sentences, sentences[:, 0] % 2),
        [torch.arange(20), torch.arange(20, 40)],
        partition=contiguous(layout, 3),
        **settings,
    )
    assert 0 < read.smoothness.largest < math.inf
    assert len(read.variance) == 3


def test_impossible_requests(data: tuple[Tensor, list[Tensor]]) -> None:
    samples, split = data
    task = Point(), loss, (samples, samples[:, 0]), split
    with pytest.raises(ValueError, match="repeats 1, batches 1, roughness_of 4: use at least"):
        estimate(*task, partition=PARTS, batches=1, repeats=1)
    with pytest.raises(ValueError, match="method 'magic' is not known: use auto, hessian, diff"):
        estimate(*task, partition=PARTS, repeats=1, method="magic", engine="looped")


def test_a_spread_of_one_number_is_that_number() -> None:
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0, 3.0)


def test_models_that_are_not_all_shared_are_refused() -> None:
    model, x = nn.Linear(2, 1), torch.ones(4, 2)
    cut = Partition(3, ((Span(0, 2),),), (Span(2, 3),))
    with pytest.raises(ValueError, match=r"leave averaging\.local out"):
        estimate(model, nn.functional.mse_loss, (x, x[:, :1]), [torch.arange(4)], partition=cut)
