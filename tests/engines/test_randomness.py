"""Randomness that a model draws by itself: honored for each worker and step, or refused."""

import random
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from partavg import Schedule, Simulation
from partavg.core.loop import Batch
from partavg.engines.choose import choose
from partavg.engines.fused import Fused
from partavg.engines.fused.program import Uncovered
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.engines.vmapped import Vmapped

CPU = torch.device("cpu")
WORKERS = 4


class Own(nn.Module):
    """A layer, and something random around it."""

    def __init__(self, change) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(5, 3), change

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.change(x)) if self.training else self.layer(x)


def attention(x: Tensor, p: float = 0.5) -> Tensor:
    heads = x.unsqueeze(1).expand(-1, 4, -1)
    return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=p).mean(1)


OWN = {
    "stochastic depth": (lambda x: x if torch.rand(1).item() < 0.5 else 2 * x, ("torch",)),
    "noise": (lambda x: x + torch.rand_like(x), ("torch",)),
    "bernoulli": (lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)), ("torch",)),
    "gumbel": (lambda x: F.gumbel_softmax(x), ("torch",)),
    "rrelu": (lambda x: F.rrelu(x, training=True), ("torch",)),
    "random": (lambda x: x * random.random(), ("random",)),
    "numpy": (lambda x: x * float(np.random.rand()), ("numpy",)),
    "all": (
        lambda x: x * random.random() * float(np.random.rand()) + torch.randn(1),
        ("torch", "random", "numpy"),
    ),
}
KEYED = {
    "alpha dropout": nn.AlphaDropout(0.5),
    "feature alpha dropout": nn.FeatureAlphaDropout(0.5),
    "torch.dropout": lambda x: torch.dropout(x, 0.5, True),
    "attention": attention,
}


def case(module: nn.Module) -> tuple[RowModel, Tensor, Tensor, Batch]:
    torch.manual_seed(0)
    model = RowModel(module.double(), F.cross_entropy, CPU)
    params, buffers = (row.repeat(WORKERS, 1) for row in model.start())
    inputs, targets = torch.randn(1, 6, 5), torch.randint(0, 3, (1, 6))
    same = inputs.double().repeat(WORKERS, 1, 1), targets.repeat(WORKERS, 1)
    return model, params, buffers, Batch(*same, torch.arange(WORKERS) + 7)


def gradients(engine, params: Tensor, buffers: Tensor, batch: Batch) -> Tensor:
    return torch.cat([p for found in engine(params, buffers, batch) for _, p in found.pieces])


@pytest.mark.parametrize("name", OWN)
def test_the_loop_repeats_it_for_each_worker_and_step(name: str) -> None:
    change, draws = OWN[name]
    model, params, buffers, batch = case(Own(change))
    choice = choose("auto", 0, model, model.start(), batch)
    assert (choice.name, choice.draws) == ("looped", draws)
    assert choice.reason.startswith(f"it draws random numbers from {' and '.join(draws)}")
    engine = choice.build(model)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    found = gradients(engine, params, buffers, batch)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])
    torch.rand(3), random.random(), np.random.rand()
    for order in ([3, 1, 0, 2], [2], [0, 1, 2, 3]):  # other ranks and other orders of workers
        some = batch.each(lambda tensor, order=order: tensor[order])
        again = gradients(engine, params[order], buffers[order], some)
        assert torch.equal(again, found[order])
    later = gradients(engine, params, buffers, batch._replace(keys=batch.keys + 100))
    assert not torch.equal(later, found), "another step, other numbers"
    assert len(found.unique(dim=0)) > 1, "another worker, other numbers"


@pytest.mark.parametrize("engine", ["vmapped", "fused"])
@pytest.mark.parametrize("name", OWN)
def test_other_engines_refuse_it_by_name(name: str, engine: str) -> None:
    change, draws = OWN[name]
    model, _, _, batch = case(Own(change))
    sentence = f"engine {engine} cannot run this model: it draws random numbers from {draws[0]}"
    with pytest.raises(ValueError, match=sentence) as refusal:
        choose(engine, 0, model, model.start(), batch)
    assert str(refusal.value).endswith("; use engine looped")


def test_nothing_is_left_to_luck() -> None:
    """One block in a hundred is skipped: no batch of the trial is likely to see it."""
    skips = Own(lambda x: 0 * x if torch.rand(1).item() < 0.01 else x)
    for seed in range(6):
        model, params, buffers, batch = case(skips)
        batch = batch._replace(keys=batch.keys + 100 * seed)
        with pytest.raises(ValueError, match="fused cannot run this model"):
            choose("fused", 0, model, model.start(), batch)
        with pytest.raises(Uncovered, match="it draws random numbers from torch"):
            Fused(model, WORKERS)
        with pytest.raises((RuntimeError, ValueError), match=r"random|\.item\(\)"):
            gradients(Vmapped(model, WORKERS), params, buffers, batch)


def test_a_model_that_begins_to_draw_later_is_stopped_where_it_cannot_be_honored() -> None:
    class Later(Own):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x + torch.rand_like(x) if self.layer.late else x)

    module = Later(None)
    module.layer.register_buffer("unused", torch.zeros(1))
    model, params, buffers, batch = case(module)
    model._probe.module.layer.late = model._running.layer.late = False
    engine = Vmapped(model, WORKERS)
    gradients(engine, params, buffers, batch)
    model._probe.module.layer.late = True
    with pytest.raises(ValueError, match="the model draws random numbers by itself"):
        gradients(engine, params, buffers, batch)


def transformer(**options) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **options)
    head = nn.Sequential(nn.Flatten(), nn.Linear(20, 3))
    return nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Linear(1, 4), layer, head)


class Last(nn.Module):
    def __init__(self, kind: type, **options) -> None:
        super().__init__()
        self.cells, self.head = kind(1, 4, 3, dropout=0.5, **options), nn.LazyLinear(3)
        self.head(self.cells(torch.ones(1, 5, 1))[0][:, -1])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x.unsqueeze(2))[0][:, -1])


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    "make",
    [
        *(lambda change=change: Own(change) for change in KEYED.values()),
        transformer,
        lambda: transformer(norm_first=True, activation="gelu"),
        lambda: Last(nn.LSTM, batch_first=True, bidirectional=True),
    ],
)
def test_dropout_of_torchs_own_layers_is_the_same_in_a_pass_and_in_a_loop(make) -> None:
    model, params, buffers, batch = case(make())
    choice = choose("vmapped", 0, model, model.start(), batch)
    assert choice.name == "vmapped"
    found = gradients(Looped(model), params, buffers, batch)
    for chunk in (1, 3, WORKERS):
        other = gradients(Vmapped(model, chunk), params, buffers, batch)
        torch.testing.assert_close(other, found, rtol=1e-9, atol=1e-12)
    assert len(found.unique(dim=0)) == WORKERS, "each worker drops something else"
    torch.manual_seed(99)
    assert torch.equal(gradients(Looped(model), params, buffers, batch), found)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_dropout_between_recurrent_layers_comes_from_the_key(kind: type) -> None:
    model, params, buffers, batch = case(Last(kind, batch_first=True))
    assert choose("looped", 0, model, model.start(), batch).draws == ()
    found = gradients(Looped(model), params, buffers, batch)
    assert len(found.unique(dim=0)) == WORKERS


class Generating(nn.Linear):
    """Draws from a generator of its own."""

    def __init__(self, generator) -> None:
        super().__init__(5, 3)
        self.own = generator

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.own, torch.Generator):
            return super().forward(x + torch.rand(1, generator=self.own))
        return super().forward(x * float(self.own.random()))


@pytest.mark.parametrize(
    "generator", [torch.Generator(), random.Random(0), np.random.default_rng(0)]
)
def test_a_generator_of_its_own_is_refused(generator) -> None:
    model, _, _, batch = case(Generating(generator))
    with pytest.raises(ValueError, match="attribute 'own' is a generator of its own"):
        choose("auto", 0, model, model.start(), batch)


def test_what_nobody_can_repeat_is_refused() -> None:
    model, _, _, batch = case(Own(lambda x: x * float(np.random.default_rng().random())))
    with pytest.raises(ValueError, match="computes something else when it is given the same batch"):
        choose("auto", 0, model, model.start(), batch)


class Checkpointed(nn.Module):
    def __init__(self, change) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(5, 3), change

    def forward(self, x: Tensor) -> Tensor:
        inner = lambda y: torch.tanh(self.change(self.layer(y)))  # noqa: E731
        return checkpoint(inner, x, use_reentrant=False)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (F.dropout, "dropout is computed again in the backward pass"),
        (attention, "dropout is computed again in the backward pass"),
        (lambda x: x * random.random(), "draws from random again in the backward pass"),
    ],
)
def test_what_a_backward_pass_cannot_draw_again_is_refused(change, sentence: str) -> None:
    model, _, _, batch = case(Checkpointed(change))
    with pytest.raises(ValueError, match=sentence):
        choose("auto", 0, model, model.start(), batch)


def test_the_old_kind_of_checkpointing_is_refused() -> None:
    class Old(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)

    model, _, _, batch = case(Old(5, 3))
    with pytest.raises(ValueError, match="give checkpoint use_reentrant=False"):
        choose("auto", 0, model, model.start(), batch)


def test_torchs_own_randomness_goes_with_activation_checkpointing() -> None:
    found = []
    for kind in (Checkpointed, Own):
        model, params, buffers, batch = case(kind(lambda x: x * torch.rand(1)))
        if kind is Own:
            model, params, buffers, batch = case(Plain())
        assert choose("auto", 0, model, model.start(), batch).draws == ("torch",)
        found.append(gradients(Looped(model), params, buffers, batch))
    torch.testing.assert_close(*found)


class Plain(nn.Module):
    """The same as Checkpointed, computed once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x) * torch.rand(1))


def simulated(module: nn.Module, engine: str = "auto") -> Simulation:
    torch.manual_seed(0)
    x = torch.randn(40, 5)
    return Simulation(
        module, F.cross_entropy, (x, (x.sum(1) > 0).long()), list(torch.arange(40).view(4, 10)),
        schedule=Schedule.partial(2), lr=0.1, batch=4, engine=engine,
    )  # fmt: skip


def test_a_resumed_run_draws_what_the_other_drew() -> None:
    torch.manual_seed(0)
    module = Own(OWN["all"][0])
    whole, first, second = (simulated(module) for _ in range(3))
    list(whole.train(6))
    list(first.train(3))
    random.random(), np.random.rand(), torch.rand(1)
    second.load(first.state())
    list(second.train(6))
    assert torch.equal(second.workers.params, whole.workers.params)


def test_stochastic_depth_skips_as_often_as_it_should() -> None:
    skipped = []

    def depth(x: Tensor) -> Tensor:
        skipped.append(torch.rand(1).item() < 0.2)
        return x if skipped[-1] else 2 * x

    simulation = simulated(Own(depth))
    skipped.clear()
    list(simulation.train(80))
    assert len(skipped) == 320
    assert 40 < sum(skipped) < 90
    with pytest.raises(ValueError, match=re.escape("engine fused cannot run this model: it draws")):
        simulated(Own(depth), engine="fused")
