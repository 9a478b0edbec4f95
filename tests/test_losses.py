"""Losses by name: torch's, with their options; what torch would spread silently is refused."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from partavg import build
from partavg.config import create
from partavg.config_toml import dump, parse
from partavg.losses import LOSSES
from partavg.recipe import load

torch.manual_seed(0)
LOGITS, CLASSES = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
LABELS = torch.tensor([[0, 1, 1, 0]] * 6)
NUMBERS = torch.randn(6, 4, dtype=torch.float64)

CASES = {
    "cross_entropy": ({"label_smoothing": 0.1, "ignore_index": 2}, CLASSES, F.cross_entropy(
        LOGITS, CLASSES, label_smoothing=0.1, ignore_index=2)),
    "next_token": ({"ignore_index": 2}, CLASSES, F.cross_entropy(
        LOGITS, CLASSES, ignore_index=2)),
    "nll": ({"ignore_index": 1}, CLASSES, -LOGITS[[0, 2, 3, 4], [0, 2, 3, 0]].mean()),
    "bce_with_logits": ({}, LABELS, F.softplus((1 - 2 * LABELS) * LOGITS).mean()),
    "mse": ({}, NUMBERS, (LOGITS - NUMBERS).square().mean()),
    "l1": ({}, NUMBERS, (LOGITS - NUMBERS).abs().mean()),
    "huber": ({"delta": 100.0}, NUMBERS, (LOGITS - NUMBERS).square().mean() / 2),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_what_they_are(name: str) -> None:
    options, targets, expected = CASES[name]
    config = parse({"loss": {"name": name, **options}})
    found = create("loss", config.loss)(LOGITS, targets)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_loss_of_texts_is_the_mean_over_all_tokens() -> None:
    texts, tokens = LOGITS.view(2, 3, 4), CLASSES.view(2, 3)
    assert torch.equal(LOSSES["next_token"](texts, tokens), F.cross_entropy(LOGITS, CLASSES))


@pytest.mark.parametrize("name", ["mse", "l1", "huber", "bce_with_logits"])
def test_shapes_that_differ_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"outputs \[6, 1\] and targets \[6\] of a batch differ"):
        LOSSES[name](NUMBERS[:, :1], NUMBERS[:, 0])


def test_the_default_is_cross_entropy() -> None:
    config = parse({})
    assert '[loss]\nname = "cross_entropy"\n' in dump(config)
    assert torch.equal(build.loss(config)(LOGITS, CLASSES), F.cross_entropy(LOGITS, CLASSES))


FILE = """
import torch
from torch import nn

def points():
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([[1.0], [2.0], [-1.0]])
    return (x[:60], y[:60]), (x[60:], y[60:])

def in_turn(labels, workers, seed):
    return [torch.arange(worker, len(labels), workers) for worker in range(workers)]

class Line(nn.Linear):
    def __init__(self, *, bias: bool = True):
        super().__init__(3, 1, bias=bias)

class Pinball(nn.Module):
    def __init__(self, *, at: float = 0.5):
        super().__init__()
        self.at = at

    def forward(self, outputs, targets):
        over = targets - outputs
        return torch.maximum(self.at * over, (self.at - 1) * over).mean()
"""

RECIPE = """
data.name = "f.py:points"
split.name = "f.py:in_turn"
model = {name = "f.py:Line", bias = false}
loss = {name = "mse"}
training = {workers = 3, batch = 5, lr = 0.1}
averaging.interval = 1
engine.name = "looped"
"""


@pytest.mark.parametrize("loss", ["mse", "l1", "f.py:Pinball", "torch.nn:L1Loss"])
def test_a_regression(loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.py").write_text(FILE)
    Path("r.toml").write_text(RECIPE)
    config = load("r.toml", [f"loss.name={loss}"]).config()
    data = create("data", config.data, Path("nowhere"))
    build.check(config, data)
    simulation = build.simulation(config, data, build.device(config))
    before = simulation.evaluate(data.test).loss
    for _ in simulation.train(60):
        pass
    assert simulation.evaluate(data.test).loss < 0.2 * before
    assert simulation.consensus().bias is None


def test_what_does_not_fit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.py").write_text(FILE.replace("super().__init__(3, 1", "super().__init__(3, 2"))
    Path("r.toml").write_text(RECIPE)
    config = load("r.toml").config()
    data = create("data", config.data, Path("nowhere"))
    with pytest.raises(ValueError, match=r"by mse: outputs \[2, 2\] and targets \[2, 1\] of a"):
        build.check(config, data)
