"""Small random modules: every engine computes what the loop computes, or refuses in a sentence."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from partavg.core.loop import Batch, Engine
from partavg.engines.choice import Choice
from partavg.engines.choose import choose
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel

WIDTH, WORKERS, SAMPLES = 4, 3, 5


class Does(nn.Module):
    """A function as a layer; its `shared` layers are those of others."""

    def __init__(self, function, *shared: nn.Module) -> None:
        super().__init__()
        self.function, self.shared = function, nn.ModuleList(shared)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.shared)


class Counting(nn.Module):
    """Keeps a buffer of the state dict, in one of two ways."""

    def __init__(self, replaced: bool) -> None:
        super().__init__()
        self.replaced = replaced
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.replaced:
            self.count = self.count + 1
        else:
            self.count += 1
        return x * (1 + self.count.to(x.dtype) / 10)


class Looking(nn.Linear):
    """Keeps what it computed last."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        return self.last


def attention(x: Tensor) -> Tensor:
    heads = x.unsqueeze(1) * torch.ones(3, 1, dtype=x.dtype)
    return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3).sum(1)


def late() -> nn.Module:
    norm = nn.BatchNorm1d(WIDTH)
    return nn.Sequential(norm, nn.Linear(WIDTH, WIDTH), Does(lambda x, norm: norm(x), norm))


def tied() -> nn.Module:
    one, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    other.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), other)


def frozen() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH).requires_grad_(False)


LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "resting batch norm": lambda: nn.BatchNorm1d(WIDTH).eval(),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "dropout": lambda: nn.Dropout(0.4),
    "alpha dropout": lambda: nn.AlphaDropout(0.4),
    "F.dropout": lambda: Does(lambda x: F.dropout(x, 0.3)),
    "attention": lambda: Does(attention),
    "one norm twice": late,
    "tied": tied,
    "frozen": frozen,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "buffer in place": lambda: Counting(replaced=False),
    "buffer replaced": lambda: Counting(replaced=True),
    "looking": lambda: Looking(WIDTH, WIDTH),
    "branch": lambda: Does(lambda x: x if bool(x.sum() > 0) else -x),
    "noise": lambda: Does(lambda x: x + 0.1 * torch.randn_like(x)),
    "stochastic depth": lambda: Does(lambda x: x if torch.rand(1).item() < 0.5 else -x),
    "random": lambda: Does(lambda x: x * (1 + random.random())),
    "numpy": lambda: Does(lambda x: x * (1 + float(np.random.rand()))),
}
DRAWING = {"noise", "stochastic depth", "random", "numpy"}


def run(engine: Engine, params: Tensor, buffers: Tensor, batch: Batch) -> list[Tensor]:
    """Losses and gradients of the second of two steps, and the buffers after it."""
    buffers = buffers.clone()
    for _ in range(2):
        found = [
            (some.losses, [p for _, p in some.pieces]) for some in engine(params, buffers, batch)
        ]
    grads = torch.cat([torch.cat(pieces, 1) for _, pieces in found])
    return [torch.cat([losses for losses, _ in found]), grads, buffers]


@given(names=st.lists(st.sampled_from(sorted(LAYERS)), max_size=4), seed=st.integers(0, 99))
def test_engines_agree_with_the_loop_or_refuse(names: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    layers = [LAYERS[name]() for name in names]
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers, nn.Linear(WIDTH, 3)).double()
    model = RowModel(module, F.cross_entropy, torch.device("cpu"))
    params, buffers = (row.repeat(WORKERS, 1) for row in model.start())
    params = params + 0.1 * torch.randn_like(params)
    inputs = torch.randn(WORKERS, SAMPLES, WIDTH, dtype=torch.float64)
    batch = Batch(inputs, torch.randint(0, 3, (WORKERS, SAMPLES)), torch.arange(WORKERS) + seed)
    expected = run(Looped(model), params, buffers, batch)
    for engine in ("looped", "vmapped", "fused"):
        choice = chosen(engine, model, batch)
        if isinstance(choice, str):
            assert engine != "looped"
            assert choice.startswith(f"engine {engine} cannot run this model: ")
            assert "\n" not in choice
            continue
        assert engine == "looped" or DRAWING.isdisjoint(names)
        found = run(choice.build(model), params, buffers, batch)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)
    for row, trained in enumerate(model.modules(params, expected[2])):
        alone = model.module(params[row], expected[2][row])
        assert torch.equal(seen(trained, inputs[row]), seen(alone, inputs[row]))


def chosen(engine: str, model: RowModel, batch: Batch) -> Choice | str:
    """The engine, or why it refuses."""
    try:
        return choose(engine, 2, model, model.start(), batch)
    except ValueError as refusal:
        return str(refusal)


def seen(module: nn.Module, inputs: Tensor) -> Tensor:
    """What a module makes of inputs, with all randomness begun anew."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return module(inputs)


@pytest.mark.parametrize("name", ["linear", "dropout", "attention", "one norm twice", "tied"])
def test_what_should_run_in_one_pass_does(name: str) -> None:
    module = nn.Sequential(LAYERS[name](), nn.Linear(WIDTH, 3))
    model = RowModel(module, F.cross_entropy, torch.device("cpu"))
    inputs, targets = torch.randn(WORKERS, SAMPLES, WIDTH), torch.zeros(WORKERS, SAMPLES).long()
    batch = Batch(inputs, targets, torch.arange(WORKERS))
    assert choose("vmapped", 0, model, model.start(), batch).name == "vmapped"
