"""Transformers in the fused engine against the loop, in float64: ours and users' own."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.loop import Batch
from partavg.engines.fused import Fused
from partavg.engines.fused.head_loss import operation as head_loss
from partavg.engines.fused.program import Program
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.losses import cross_entropy, next_token
from partavg.models.gpt import gpt

CPU, WORDS = torch.device("cpu"), 20


def run(engine, params: Tensor, buffers: Tensor, batch: Batch) -> list[Tensor]:
    found = [(each.losses, list(each.pieces)) for each in engine(params, buffers, batch)]
    grads = [torch.cat([grad for _, grad in pieces], 1) for _, pieces in found]
    return [torch.cat([losses for losses, _ in found]), torch.cat(grads)]


def compare(module: nn.Module, loss=next_token) -> None:
    model = RowModel(module.double(), loss, CPU)
    params, buffers = model.start()
    params = params + 0.05 * torch.randn(3, len(params), dtype=params.dtype)
    texts = torch.randint(0, WORDS, (2, 3, 2, 10))
    batch = Batch(*texts, torch.arange(3) + 7)
    given = params, buffers.repeat(3, 1), batch
    for one, other in zip(run(Looped(model), *given), run(Fused(model, 2), *given), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("positions", "norm", "activation"),
    list(product(("rotary", "learned"), ("rms", "layer"), ("gelu", "swiglu"))),
)
@pytest.mark.parametrize("plain", [True, False])
def test_every_gpt(positions: str, norm: str, activation: str, plain: bool) -> None:
    torch.manual_seed(0)
    options = {"positions": positions, "norm": norm, "activation": activation, "tied": plain}
    more = {"bias": not plain, "dropout": 0.0 if plain else 0.1}
    compare(gpt((12,), WORDS, layers=2, width=16, heads=2, **options, **more))


class Encoder(nn.Module):
    """torch's own layers, with a mask made on the way."""

    def __init__(self, batch_first: bool, norm_first: bool, dropout: float, deep: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            *(8, 2, 12, dropout), batch_first=batch_first, norm_first=norm_first, activation="gelu"
        )
        self.layer = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8)) if deep else layer
        self.head = nn.Linear(8, WORDS)
        self.batch_first = batch_first

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        length = words.shape[1]
        mask = torch.triu(torch.ones(length, length, device=x.device), diagonal=1).bool()
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.layer(x, mask, src_key_padding_mask=words == 19)
        return self.head(x if self.batch_first else x.transpose(0, 1))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_encoders(batch_first: bool, norm_first: bool, dropout: float) -> None:
    torch.manual_seed(0)
    compare(Encoder(batch_first, norm_first, dropout, deep=batch_first))


class Own(nn.Module):
    """In the manner of nanoGPT: written by hand, norms by functions, a mask in a buffer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(12, 8)
        self.scale, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, WORDS, bias=False)
        self.heads = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.register_buffer("seen", torch.ones(12, 12).tril()[None, None])

    def forward(self, words: Tensor) -> Tensor:
        n, t = words.size()
        x = self.words(words) + self.places(torch.arange(0, t, device=words.device))
        y = F.layer_norm(x, self.scale.shape, self.scale, self.shift, 1e-5)
        if self.kind == "heads":
            found, _ = self.heads(y, y, y)
            return self.head(x + found)
        q, k, v = self.qkv(y).split(8, dim=2)
        q, k, v = (z.view(n, t, 2, 4).transpose(1, 2) for z in (q, k, v))
        if self.kind == "written":
            scores = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
            scores = scores.masked_fill(self.seen[:, :, :t, :t] == 0, float("-inf"))
            y = F.dropout(F.softmax(scores, dim=-1), 0.1, self.training) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        return self.head(x + y.transpose(1, 2).contiguous().view(n, t, 8))


@pytest.mark.parametrize("kind", ["heads", "written", "torch"])
def test_a_users_own(kind: str) -> None:
    torch.manual_seed(0)
    compare(Own(kind))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    "make",
    [
        lambda: gpt((12,), WORDS, layers=3, width=16, heads=2, dropout=0.2),
        lambda: gpt((12,), WORDS, layers=2, width=16, heads=2, positions="learned", tied=False),
        lambda: Encoder(batch_first=True, norm_first=True, dropout=0.2, deep=True),
    ],
)
@pytest.mark.parametrize("headless", [True, False])
def test_activations_computed_twice(make: Callable[[], nn.Module], headless: bool) -> None:
    """The same bits, and less that is kept on the way."""
    torch.manual_seed(0)
    loss = next_token if headless else lambda x, y: next_token(x, y)
    model = RowModel(make().double(), loss, CPU)
    params, buffers = model.start()
    params = params + 0.05 * torch.randn(3, len(params), dtype=params.dtype)
    given = (
        params,
        buffers.repeat(3, 1),
        Batch(*torch.randint(0, WORDS, (2, 3, 4, 12)), torch.arange(3)),
    )
    kept: list[int] = []
    found = []
    for again in (False, True):
        kept.append(0)

        def count(tensor: Tensor) -> Tensor:
            kept[-1] += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            found.append(run(Fused(model, 3, recompute=again), *given))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert kept[1] < 0.7 * kept[0], kept


def test_batch_norm_is_never_run_twice() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    assert not Program(module).can_recompute


class Odd(nn.Module):
    """A head that is called before, too, and a norm whose output nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, 8), nn.LayerNorm(8)
        self.unused, self.head = nn.LayerNorm(8), nn.Linear(8, WORDS)
        self.back = nn.Linear(WORDS, 8)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        early = self.back(self.head(x))
        total = x + early
        self.unused(total)
        return self.head(self.norm(input=total * 2))


def test_a_head_that_is_called_twice() -> None:
    torch.manual_seed(0)
    compare(Odd())


def test_a_word_outside_the_vocabulary_is_not_a_number() -> None:
    """Torch raises an error; engines that must not wait for a GPU end with NaN."""
    model = RowModel(nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)), next_token, CPU)
    params, buffers = model.start()
    words = torch.randint(0, WORDS, (2, 1, 3, 5))
    for wrong in (-1, WORDS):
        words[1, 0, 0, 0] = wrong
        batch = Batch(*words, torch.arange(1))
        losses, _ = run(Fused(model, 1), params[None].clone(), buffers[None].clone(), batch)
        assert losses.isnan().all()


def test_words_to_ignore_and_logits_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(head_loss, "_MOST", 5 * WORDS)
    compare(gpt((12,), WORDS, layers=1, width=8, heads=1), partial(next_token, ignore_index=3))
    compare(nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)), partial(next_token))


def test_which_losses_are_known() -> None:
    assert head_loss.Criterion.of(next_token) == head_loss.Criterion(-100)
    assert head_loss.Criterion.of(partial(next_token, ignore_index=0)) == head_loss.Criterion(0)
    of_samples = head_loss.Criterion(-100, of_samples=True)
    named = partial(cross_entropy, label_smoothing=0.0, ignore_index=-100)  # as recipes do
    for same in (F.cross_entropy, cross_entropy, named, nn.CrossEntropyLoss()):
        assert head_loss.Criterion.of(same) == of_samples
    for other in (
        F.mse_loss,
        partial(F.cross_entropy, label_smoothing=0.1),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(torch.ones(3)),
        nn.CrossEntropyLoss(reduction="sum"),
    ):
        assert head_loss.Criterion.of(other) is None


def test_classes_of_samples_and_of_pixels() -> None:
    labels, pixels = torch.tensor([[0, 2]]), torch.tensor([[[0, 2]]])
    known = head_loss.Criterion(-100, of_samples=True)
    assert [known.takes(x) for x in (labels, pixels, labels.double(), (labels,))] == [
        True,
        False,
        False,
        False,
    ]
    assert head_loss.Criterion(-100).takes(pixels)


@pytest.mark.parametrize("ignored", [-100, 2])
def test_losses_of_outputs_are_those_of_each_worker(ignored: int) -> None:
    torch.manual_seed(0)
    outputs, classes = torch.randn(3, 6, 4, dtype=torch.float64), torch.randint(4, (3, 6))
    found = head_loss.Criterion(ignored, of_samples=True).of_outputs(outputs, classes)
    own = [
        F.cross_entropy(*pair, ignore_index=ignored) for pair in zip(outputs, classes, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(own))


def test_losses_of_other_outputs_are_left_to_vmap() -> None:
    known, labels = head_loss.Criterion(-100, of_samples=True), torch.ones(3, 6, dtype=torch.int64)
    pixels, single, shares = torch.ones(3, 6, 4, 2), torch.ones(3, 6), torch.ones(3, 6, 4)
    for outputs, classes in (
        *((pixels, labels.unsqueeze(-1)), (single, labels), (shares, shares)),
        *((shares[:, :5], labels), ((shares,), labels), (shares, {"label": labels})),
    ):
        assert known.of_outputs(outputs, classes) is None
    assert head_loss.Criterion(-100).of_outputs(shares, labels) is None


def test_no_vmap_where_classes_do_not_need_it() -> None:
    """It would import what torch.compile needs, a second."""
    program = """
import sys, torch, partavg
net = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 2), torch.nn.AvgPool2d(3), torch.nn.Flatten())
x, y = torch.randn(12, 1, 4, 4), torch.arange(12) % 3
told = {"schedule": partavg.Schedule.partial(2), "lr": 0.1, "engine": "fused"}
split, loss = partavg.iid(y, 2, 0), torch.nn.functional.cross_entropy
simulation = partavg.Simulation(net, loss, (x, y), split, **told)
list(simulation.train(6))
print(*{"sympy", "torch._dynamo"} & set(sys.modules))
"""
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "\n"


def test_gradients_that_have_a_place() -> None:
    def find(tied: bool) -> set[str]:
        return Program(gpt((12,), WORDS, layers=1, width=8, heads=1, tied=tied)).multiplied_once()

    ours = {f"blocks.0.{name}.weight" for name in ("attention.qkv", "attention.out", "feed.up")}
    assert find(True) == {*ours, "blocks.0.feed.down.weight"}
    assert find(False) == find(True) | {"head.weight"}
