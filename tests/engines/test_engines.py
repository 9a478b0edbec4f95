"""Both engines against each other and against plain autograd, in float64."""

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.loop import Batch, Engine
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.engines.vmapped import Vmapped
from partavg.models import MODELS, cnn, mlp, resnet20
from partavg.models.wide_resnet import wide_resnet

CPU = torch.device("cpu")
SMALL = {
    "cnn": partial(MODELS["cnn"], width=8),
    "lstm": partial(MODELS["lstm"], words=20, width=4),
    "wrn16_8": partial(wide_resnet, depth=16, width=2),
    "wrn28_10": partial(wide_resnet, depth=28, width=1),
}
"""What is too slow as it is, for tests."""


class Tied(nn.Module):
    """An autoencoder whose two layers are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(5, 5, bias=False)
        self.decode = nn.Linear(5, 5)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.encode(x.flatten(1))))


class Sum(nn.Module):
    """Two parameters that autograd gives one and the same gradient, and one it gives none."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.randn(3, 5))
        self.delta = nn.Parameter(torch.randn(3, 5))
        self.unused = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1), self.base + self.delta)


class Moving(nn.Module):
    """Replaces its buffer instead of writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.layer(x - self.mean)


class Followed(Moving):
    """Replaces its buffer by one that autograd follows."""

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * self.layer.bias.sum() * x.mean(0)
        return self.layer(x - self.mean.detach())


class Empty(nn.Linear):
    """Has a parameter without elements."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.nothing = nn.Parameter(torch.empty(0, 3))


def frozen() -> nn.Module:
    model = mlp((5,), 3, hidden=(4, 4))
    model[1].requires_grad_(False)
    return model


def user_models() -> dict[str, nn.Module]:
    return {
        "tied": Tied(),
        "sum": Sum(),
        "frozen": frozen(),
        "batch norm": mlp((5,), 3, hidden=(4,), batch_norm=True),
        "dropout": mlp((5,), 3, hidden=(40,), dropout=0.5),
        "dropout2d": nn.Sequential(
            nn.Unflatten(1, (1, 5, 1)),
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Dropout2d(0.5),
            nn.Flatten(),
            nn.Linear(20, 3),
        ),
        "dropout2d of sequences": nn.Sequential(
            nn.Unflatten(1, (1, 5)),
            nn.Conv1d(1, 4, 3, padding=1),
            nn.Dropout2d(0.5),
            nn.Flatten(),
            nn.Linear(20, 3),
        ),
        "reassigned buffer": Moving(),
        "followed buffer": Followed(),
        "empty parameter": Empty(5, 3),
        "group norm": nn.Sequential(nn.Linear(5, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)),
        "embedding": nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)),
    }


def problem(module: nn.Module, shape: tuple[int, ...], workers: int = 5, classes: int = 3):
    """A model, different rows for its workers, and a batch for each."""
    torch.manual_seed(0)
    model = RowModel(module.double(), F.cross_entropy, CPU)
    params, buffers = model.start()
    params = params + 0.1 * torch.randn(workers, len(params), dtype=torch.float64)
    batch = Batch(
        torch.randn(workers, 4, *shape, dtype=torch.float64),
        torch.randint(0, classes, (workers, 4)),
        torch.arange(workers) + 7,
    )
    return model, params, buffers.repeat(workers, 1), batch


def run(engine: Engine, params: Tensor, buffers: Tensor, batch: Batch) -> list[Tensor]:
    """Losses, gradients, and buffers after two calls."""
    buffers = buffers.clone()
    for _ in range(2):
        found = [(each, list(each.pieces)) for each in engine(params, buffers, batch)]
    assert [each.rows.start for each, _ in found] == sorted(each.rows.start for each, _ in found)
    columns = [c for columns, _ in found[0][1] for c in range(*columns.indices(10**9))]
    assert columns == list(range(params.shape[1]))
    grads = [torch.cat([grad for _, grad in pieces], 1) for _, pieces in found]
    return [torch.cat([each.losses for each, _ in found]), torch.cat(grads), buffers]


def assert_engines_agree(
    model: RowModel, params: Tensor, buffers: Tensor, batch: Batch, chunks=(1, 2, 5, 99)
) -> None:
    expected = run(Looped(model), params, buffers, batch)
    for chunk in chunks:
        for ours, theirs in zip(
            run(Vmapped(model, chunk), params, buffers, batch), expected, strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"gpt"}))
def test_vmapped_equals_looped_on_every_model(name: str) -> None:
    shape = (6,) if name == "lstm" else (3, 8, 8)
    workers, chunks = (2, (2,)) if name == "vgg11" else (5, (1, 2, 5, 99))
    module = SMALL.get(name, MODELS[name])(shape, 3)
    model, params, buffers, batch = problem(module, shape, workers)
    if name == "lstm":
        batch = batch._replace(inputs=batch.inputs.abs().mul(10).long() % 20)
    assert_engines_agree(model, params, buffers, batch, chunks)


@pytest.mark.parametrize("name", sorted(user_models()))
def test_vmapped_equals_looped_on_users_modules(name: str) -> None:
    assert_engines_agree(*problem(user_models()[name], (5,)))


@pytest.mark.parametrize("name", [name for name in user_models() if "dropout" not in name])
def test_looped_equals_plain_autograd(name: str) -> None:
    module = user_models()[name]
    model, params, buffers, batch = problem(module, (5,))
    losses, grads, after = run(Looped(model), params, buffers, batch)
    for row in range(len(params)):
        plain = model.module(params[row], buffers[row]).train()
        for _ in range(2):
            plain.zero_grad()
            loss = F.cross_entropy(plain(batch.inputs[row]), batch.targets[row])
            loss.backward()
        assert float(losses[row]) == pytest.approx(loss.item(), abs=1e-12)
        own = dict(plain.named_parameters())
        for key, view in model.params.views(grads[row]).items():
            expected = own[key].grad if own[key].grad is not None else torch.zeros_like(view)
            torch.testing.assert_close(view, expected, rtol=0, atol=1e-12)
        for key, value in plain.named_buffers():
            torch.testing.assert_close(
                model.buffers.views(after[row])[key], value.double(), rtol=0, atol=1e-12
            )


def test_large_gradients_are_handed_over_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when autograd gives two parameters the same tensor: a solver may use each up."""
    for name, module in user_models().items():
        case = problem(module, (5,))
        expected = run(Looped(case[0]), *case[1:])
        with monkeypatch.context() as patch:
            for most in (0, 20):
                patch.setattr("partavg.engines.pieces._MOST_ON_CPU", most)
                for engine in (Looped(case[0]), Vmapped(case[0], 2)):
                    for ours, theirs in zip(run(engine, *case[1:]), expected, strict=True):
                        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12, msg=name)
            pieces = list(next(Looped(case[0])(case[1], case[2].clone(), case[3])).pieces)
            assert len({grad.data_ptr() for _, grad in pieces}) == len(pieces)


def test_dropout_depends_on_the_key_and_nothing_else() -> None:
    model, params, buffers, batch = problem(user_models()["dropout"], (5,), workers=4)
    params = params[:1].repeat(4, 1)
    batch = Batch(batch.inputs[:1].repeat(4, 1, 1), batch.targets[:1].repeat(4, 1), batch.keys)
    losses, *_ = run(Looped(model), params, buffers, batch)
    assert len(losses.unique()) == 4, "different keys drop different units"
    same = batch._replace(keys=torch.full((4,), 7))
    losses, *_ = run(Looped(model), params, buffers, same)
    assert len(losses.unique()) == 1
    torch.manual_seed(123)
    again, *_ = run(Looped(model), params, buffers, same)
    assert torch.equal(losses, again), "the global generator plays no part"


def test_the_users_module_is_left_alone() -> None:
    module = mlp((5,), 3, batch_norm=True, dropout=0.2).eval()
    before = copy.deepcopy(module.state_dict())
    case = problem(module, (5,))
    run(Vmapped(case[0], 5), *case[1:])
    assert not module.training
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_parts_in_evaluation_mode_stay_so() -> None:
    """As when someone fine-tunes around a frozen BatchNorm."""
    module = mlp((5,), 3, hidden=(4,), batch_norm=True)
    module[2].eval().requires_grad_(False)
    model, params, buffers, batch = problem(module, (5,))
    assert torch.equal(run(Looped(model), params, buffers, batch)[2], buffers)


def test_disjoint_pieces_of_one_memory_are_no_ties() -> None:
    """As cuDNN lays out the weights of an LSTM."""
    memory = torch.randn(6)
    module = nn.Module()
    module.one, module.two = nn.Parameter(memory[:3]), nn.Parameter(memory[3:])
    assert RowModel(module, F.cross_entropy, CPU).params.size == 6


def test_a_buffer_in_two_places_stays_one() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.reader = nn.Linear(5, 3), nn.Identity()
            self.register_buffer("count", torch.zeros(1))
            self.reader.register_buffer("seen", self.count)

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return self.layer(x) * self.reader.seen

    torch.manual_seed(0)
    model = RowModel(Pair(), F.cross_entropy, CPU)
    params, buffers = (row[None] for row in model.start())
    batch = Batch(torch.randn(1, 4, 5), torch.zeros(1, 4, dtype=torch.long), torch.zeros(1).long())
    losses = [next(iter(Looped(model)(params, buffers, batch))).losses.item() for _ in range(2)]
    assert buffers.tolist() == [[2.0]]
    outputs = model.module(params[0], torch.zeros(1)).layer(batch.inputs[0])
    for times, loss in enumerate(losses, 1):
        expected = F.cross_entropy(times * outputs, batch.targets[0])
        assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_row_model_round_trip() -> None:
    module = resnet20((3, 8, 8), 10)
    model = RowModel(module, F.cross_entropy, CPU)
    restored = model.module(*model.start())
    for key, value in module.state_dict().items():
        assert torch.equal(restored.state_dict()[key], value)


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


def mixed() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half())


def untied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.t())
    return model


def all_frozen() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(False)


def fine_number() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("third", torch.tensor(1 / 3, dtype=torch.float64))
    return model


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lazy, "parameter '0.weight' has no shape yet"),
        (mixed, "'1.weight' is torch.float16, others are torch.float32"),
        (untied, "'0.weight' and '1.weight' share memory"),
        (all_frozen, "no trainable parameters"),
        (fine_number, "buffer 'third' of torch.float64 cannot be carried exactly"),
    ],
)
def test_models_that_cannot_work_are_refused(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RowModel(make(), F.cross_entropy, CPU)


def test_a_chunk_of_nothing_is_refused() -> None:
    model, *_ = problem(cnn((1, 8, 8), 3, width=4), (1, 8, 8))
    with pytest.raises(ValueError, match="chunk 0 is below 1"):
        Vmapped(model, 0)
