"""Losses of a user's own that count their calls, which a CUDA graph would not."""

from collections.abc import Callable
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.engines.test_fused import problem, small
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.loop import Batch
from partavg.engines.fused import Fused
from partavg.engines.model import RowModel

CPU = torch.device("cpu")
Loss = Callable[[Tensor, Tensor], Tensor]
LATE = 5  # calls after which a loss is another one
total = 0


def in_a_list() -> Loss:
    calls: list[None] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(None)
        return F.cross_entropy(outputs, targets) * (9 if len(calls) > LATE else 1)

    return loss


def in_a_name() -> Loss:
    calls = 0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return F.cross_entropy(outputs, targets) * (9 if calls > LATE else 1)

    return loss


def counted(outputs: Tensor, targets: Tensor) -> Tensor:
    global total
    total += 1
    return F.cross_entropy(outputs, targets) * (9 if total > LATE else 1)


def in_a_module_name() -> Loss:
    global total
    total = 0
    return lambda outputs, targets: counted(outputs, targets)


def by_itertools() -> Loss:
    calls = count()
    return lambda o, t: F.cross_entropy(o, t) * (9 if next(calls) >= LATE else 1)


def in_an_option() -> Loss:
    def loss(outputs: Tensor, targets: Tensor, *, state: Any) -> Tensor:
        state["seen"].calls += 1
        return F.cross_entropy(outputs, targets) * (9 if state["seen"].calls > LATE else 1)

    return partial(loss, state={"seen": SimpleNamespace(calls=0)})


class Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return F.cross_entropy(outputs, targets) * (9 if self.calls > LATE else 1)


class Method:
    def __init__(self) -> None:
        self.calls = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(outputs, targets) * (9 if self.calls > LATE else 1)


COUNTING = {
    "in a list": in_a_list,
    "in a name": in_a_name,
    "in a module's name": in_a_module_name,
    "by itertools": by_itertools,
    "in an option": in_an_option,
    "in a buffer": Annealed,
    "in an attribute": lambda: Method().loss,
}


class Smooth(nn.Module):
    """A pure one: what it keeps is what it was made with, or only looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.share, self.weights = 0.1, torch.ones(3)
        self.last: Any = None

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.last = F.cross_entropy(outputs, targets, label_smoothing=self.share)
        return self.last


def plain(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


class Pretended:
    """A CUDA graph on a CPU, which would be recorded at the second call."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call, self._calls = call, 0

    def __call__(self, params: Tensor, buffers: Tensor, batch: Batch) -> Any:
        self._calls += 1
        if self._calls > 1:
            raise AssertionError("recorded")
        losses, found = self._call(params, buffers, batch)
        return losses, list(found)


def losses_of(loss: Loss, calls: int, *, on_gpu: bool) -> list[float]:
    _, *rows, batch = problem(*small("mlp"), torch.float32)
    model = RowModel(small("mlp")[0], loss, CPU)
    engine = Fused(model, 9)
    if on_gpu:
        engine._recorded = Pretended(engine._pass)  # type: ignore[assignment]
    return [float(part.losses.mean()) for _ in range(calls) for part in engine(*rows, batch)]


@pytest.mark.parametrize("name", COUNTING)
def test_a_loss_that_counts_is_not_recorded(name: str) -> None:
    with pytest.warns(UserWarning, match=r"the loss \S+ counts its calls"):
        found = losses_of(COUNTING[name](), 2 * LATE, on_gpu=True)
    assert found[-1] > 4 * found[0]


@pytest.mark.parametrize("make", [Smooth, lambda: plain, lambda: F.cross_entropy])
def test_a_loss_that_counts_nothing_is_recorded(make: Callable[[], Loss]) -> None:
    with pytest.raises(AssertionError, match="recorded"):
        losses_of(make(), 2, on_gpu=True)


def test_without_a_gpu_a_loss_is_not_called_again() -> None:
    calls: list[None] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(None)
        return F.cross_entropy(outputs, targets)

    losses_of(loss, 3, on_gpu=False)
    assert len(calls) == 3
