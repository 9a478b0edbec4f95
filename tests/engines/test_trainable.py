"""Modules as users write them: they train in every engine, or a sentence says why they do not."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from partavg.core.loop import Batch, Engine
from partavg.engines.choose import choose
from partavg.engines.model import RowModel

CPU = torch.device("cpu")
WORKERS = 3


class Twice(nn.Module):
    """One layer under two names, and called by both."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.one = self.other = layer
        self.between, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.other(self.between(self.one(x))))


class Observed(nn.Module):
    """Keeps what it computed last, as people do to look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(5, 3), None

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x)
        return self.last


def normed() -> nn.Module:
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(5, 6)),
        nn.Tanh(),
        parametrizations.spectral_norm(nn.Linear(6, 3)),
    )


def case(module: nn.Module) -> tuple[RowModel, Tensor, Tensor, Batch]:
    torch.manual_seed(0)
    model = RowModel(module.double(), F.cross_entropy, CPU)
    params, buffers = (row.repeat(WORKERS, 1) for row in model.start())
    inputs, targets = torch.randn(WORKERS, 4, 5).double(), torch.randint(0, 3, (WORKERS, 4))
    params += 0.1 * torch.randn(params.shape, dtype=torch.float64)
    return model, params, buffers, Batch(inputs, targets, torch.arange(WORKERS))


def run(engine: Engine, params: Tensor, buffers: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The gradients of the second of two steps, and the buffers after it."""
    buffers = buffers.clone()
    for _ in range(2):
        grads = [p for found in engine(params, buffers, batch) for _, p in found.pieces]
    return torch.cat(grads), buffers


@pytest.mark.parametrize("engine", ["looped", "vmapped", "fused"])
@pytest.mark.parametrize(
    "make",
    [lambda: Twice(nn.BatchNorm1d(5)), lambda: Twice(nn.Linear(5, 5)), Observed, normed],
    ids=["BatchNorm twice", "Linear twice", "observed", "normed"],
)
def test_engines_agree_and_what_they_trained_can_be_copied(make, engine: str) -> None:
    model, params, buffers, batch = case(make())
    if make is normed and engine != "looped":
        sentence = rf"^engine {engine} cannot run this model: .*; use engine"
        with pytest.raises(ValueError, match=sentence):
            choose(engine, 0, model, model.start(), batch)
        return
    built = choose(engine, 0, model, model.start(), batch).build(model)
    grads, after = run(built, params, buffers, batch)
    for row, module in enumerate(model.modules(params, buffers)):
        alone = model.module(params[row], buffers[row])
        assert torch.equal(module(batch.inputs[row]), alone(batch.inputs[row]))
        plain = alone.train()
        for _ in range(2):
            plain.zero_grad()
            F.cross_entropy(plain(batch.inputs[row]), batch.targets[row]).backward()
        expected = torch.cat([p.grad.flatten() for p in plain.parameters()])
        torch.testing.assert_close(grads[row], expected)
        for name, value in model.buffers.views(after[row]).items():
            torch.testing.assert_close(value, plain.get_buffer(name).double())


def test_sparse_gradients_are_made_dense() -> None:
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        embedding = nn.Embedding(10, 5, sparse=sparse)
        module = nn.Sequential(embedding, nn.Flatten(), nn.Linear(10, 3)).double()
        model = RowModel(module, F.cross_entropy, CPU)
        params, buffers = (row.repeat(WORKERS, 1) for row in model.start())
        words, targets = torch.randint(0, 10, (WORKERS, 4, 2)), torch.randint(0, 3, (WORKERS, 4))
        batch = Batch(words, targets, torch.arange(WORKERS))
        for engine in ("auto", "looped"):
            choice = choose(engine, 0, model, model.start(), batch)
            found.append(run(choice.build(model), params, buffers, batch)[0])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(5, 3)


def complex_buffer() -> nn.Module:
    module = nn.Linear(5, 3)
    module.register_buffer("phase", torch.tensor([1 + 2j]))
    return module


def used() -> nn.Module:
    module = Observed()
    module(torch.randn(2, 5))
    return module


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: nn.Linear(5, 3, dtype=torch.complex64), "'weight' is torch.complex64: rows hold"),
        (complex_buffer, "buffer 'phase' of torch.complex64 cannot be carried in .* as two real"),
        (meta, "'weight' is on the meta device and has no values"),
        (lambda: torch.jit.script(nn.Linear(5, 3)), "the model is a ScriptModule"),
        (lambda: torch.compile(nn.Linear(5, 3)), "the model was made by torch.compile"),
        (lambda: nn.Sequential(torch.compile(nn.Linear(5, 3))), "layer '0' was made by torch.c"),
        (lambda: nn.DataParallel(nn.Linear(5, 3)), "wrapped in DataParallel: give the module"),
        (lambda: weight_norm(nn.Linear(5, 3)), "use torch.nn.utils.parametrizations.weight_norm"),
        (lambda: spectral_norm(nn.Linear(5, 3)), "torch.nn.utils.parametrizations.spectral_norm"),
        (
            lambda: nn.Sequential(nn.Linear(5, 3), nn.LazyBatchNorm1d(affine=False)),
            "buffer '1.running_mean' has no shape yet: call the model on a batch once",
        ),
        (used, "the model cannot be copied for its workers, copy.deepcopy says"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_a_sentence(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refusal:
        RowModel(make(), F.cross_entropy, CPU)
    assert "\n" not in str(refusal.value)


def test_advice_on_weights_in_one_piece_is_not_for_those_of_rows() -> None:
    """CUDA gives it, once for each LSTM; here it is said by hand."""
    advice = "RNN module weights are not part of single contiguous chunk of memory."
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        RowModel(nn.Linear(2, 3), F.cross_entropy, CPU)
        warnings.warn(advice, UserWarning, stacklevel=1)
        RowModel(nn.LSTM(2, 3), F.cross_entropy, CPU)
        warnings.warn(advice, UserWarning, stacklevel=1)
    assert len(said) == 1
