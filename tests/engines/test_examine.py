"""What a model keeps for itself, and losses that cannot be minimized."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import Schedule, Simulation
from partavg.core.loop import Batch
from partavg.engines.choose import choose
from partavg.engines.model import RowModel

CPU = torch.device("cpu")


class Keeping(nn.Linear):
    """Something that forward changes, and reads."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.teacher = nn.Parameter(torch.ones(5), requires_grad=False)
        self.register_buffer("mean", torch.zeros(5), persistent=False)
        self.register_buffer("total", torch.zeros(5))
        self.calls = 0
        self.last = torch.zeros(5)
        self.table = None
        self.seen = False


class Buffer(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0).detach())
        return super().forward(x - self.mean)


class Replaced(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9999 * self.mean + 0.0001 * x.mean(0).detach()
        return super().forward(x - self.mean)


class Counter(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x if self.calls < 1000 else 2 * x)


class Attribute(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        self.last = 0.5 * self.last + x.mean(0).detach()
        return super().forward(x - self.last)


class Teacher(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        self.teacher.data = 0.99 * self.teacher.data + 0.01 * self.weight.data[0]
        return super().forward(x - self.teacher)


class Harmless(Keeping):
    """Looks at what it computed, makes a table once, and keeps its state where it belongs."""

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(5.0)
            self.register_buffer("late", torch.ones(5), persistent=False)
        self.total = self.total + x.mean(0).detach()
        self.last, self.seen = super().forward(x * self.late - self.total + self.table), True
        self.calls = len(x)
        return self.last


def case(module: nn.Module, loss=F.cross_entropy, inputs: Tensor | None = None):
    torch.manual_seed(0)
    model = RowModel(module, loss, CPU)
    x = torch.randn(3, 4, 5) if inputs is None else inputs
    return model, model.start(), Batch(x, torch.randint(0, 3, (3, 4)), torch.arange(3))


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "fused"])
@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Buffer, "buffer 'mean' is no part of the state dict, but every forward pass changes it"),
        (Replaced, "buffer 'mean' .* share it: register it with persistent=True"),
        (Counter, "attribute 'calls' is changed by every forward pass"),
        (Attribute, "attribute 'last' .* share it: register it as a buffer"),
        (Teacher, "parameter 'teacher' is frozen, but every forward pass changes it"),
    ],
)
def test_what_workers_would_share_is_refused(kind, sentence: str, engine: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        choose(engine, 0, *case(kind()))


def test_the_place_of_what_is_shared_is_named() -> None:
    with pytest.raises(ValueError, match=r"attribute '1\.calls' is changed"):
        choose("auto", 0, *case(nn.Sequential(nn.Tanh(), Counter())))


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped"])
def test_what_does_no_harm_is_not_refused(engine: str) -> None:
    model, start, batch = case(Harmless())
    choose(engine, 0, model, start, batch)
    assert model.module(*start).table is None, "what is handed out has never run"


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (lambda o, t: F.cross_entropy(o, t, reduction="none"), r"shape \[4\]: it must be one num"),
        (lambda o, t: t.float().mean(), "does not depend on the trainable parameters"),
        (lambda o, t: F.cross_entropy(o.detach(), t), "does not depend on the trainable"),
        (lambda o, t: F.cross_entropy(o, t).item(), "the loss returned a float"),
        (lambda o, t: None, "the loss returned a NoneType: it must return a tensor"),
        (lambda o, t: F.cross_entropy(o, t) * torch.nan, "loss of the first batch is nan before"),
        (lambda o, t: F.cross_entropy(o, t) + torch.inf, "loss of the first batch is inf before"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "fused"])
def test_losses_that_cannot_be_minimized_are_refused(loss, sentence: str, engine: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        choose(engine, 0, *case(nn.Linear(5, 3), loss))


def test_samples_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="look for numbers that are not finite in the samples"):
        choose("auto", 0, *case(nn.Linear(5, 3), inputs=torch.full((3, 4, 5), torch.nan)))


def test_a_loss_that_is_finite_only_at_the_start_is_tried_there() -> None:
    class Root(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 3)
            self.scale = nn.Parameter(torch.full((100,), 1e-6))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale.sqrt().sum()

    assert choose("vmapped", 0, *case(Root())).name == "vmapped"


@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped"])
def test_outputs_and_targets_are_not_spread_over_each_other(engine: str) -> None:
    x, y = torch.randn(12, 3), torch.randn(12)
    with pytest.raises(ValueError, match=r"\[4, 1\] and targets torch.float32 \[4\] of a batch"):
        Simulation(
            nn.Linear(3, 1), nn.functional.mse_loss, (x, y), [range(6), range(6, 12)],
            schedule=Schedule.partial(2), lr=0.1, batch=4, engine=engine,
        )  # fmt: skip


def test_a_single_class_is_refused_and_a_loss_of_zero_is_not() -> None:
    x, y = torch.randn(12, 3), torch.randn(12, 1)
    task = (x, y), [range(6), range(6, 12)]
    options = {"schedule": Schedule.partial(2), "lr": 0.1, "batch": 4}
    with pytest.raises(ValueError, match="is 0 whatever the parameters are, as cross_entropy is"):
        Simulation(nn.Linear(3, 1), nn.functional.cross_entropy, *task, **options)
    Simulation(nn.Linear(3, 1), lambda outputs, _: outputs.mean() - outputs.mean().detach(), *task,
               **options)  # fmt: skip
