"""Workers in threads against one after another: the same numbers, but for images to the bit."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import pytest
import torch
from tests.limits import seconds
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.loop import Batch
from partavg.engines import race
from partavg.engines.choose import choose
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.engines.threads import Threaded, why_not
from partavg.models import MODELS, mlp

CPU = torch.device("cpu")
WORKERS = 7


class Frozen(nn.Module):
    """Shares a frozen layer; has a buffer that is replaced, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(5, 5).requires_grad_(False)
        self.layer = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = 0.9 * self.seen + 0.1 * x.mean(0)
        return self.layer(F.dropout(self.base(x) - self.seen, 0.5, self.training))


def case(
    module: nn.Module, shape: tuple[int, ...] = (5,)
) -> tuple[RowModel, Tensor, Tensor, Batch]:
    torch.manual_seed(0)
    model = RowModel(module, F.cross_entropy, CPU)
    params, buffers = (row.expand(WORKERS, -1).clone() for row in model.start())
    params += 0.1 * torch.randn(params.shape)
    inputs, targets = torch.randn(WORKERS, 4, *shape), torch.randint(0, 3, (WORKERS, 4))
    return model, params, buffers, Batch(inputs, targets, torch.arange(WORKERS))


def train(engine, params: Tensor, buffers: Tensor, batch: Batch) -> list[Tensor]:
    """Three steps of SGD, as the loop takes them: while other workers are computed."""
    params, buffers, losses = params.clone(), buffers.clone(), []
    for _ in range(3):
        for found in engine(params, buffers, batch):
            losses.append(found.losses)
            for columns, grads in found.pieces:
                params[found.rows, columns] -= 0.1 * grads
    return [params, buffers, torch.cat(losses)]


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (partial(mlp, (5,), 3, dropout=0.5, batch_norm=True), (5,)),
        (Frozen, (5,)),
        (partial(MODELS["vgg11"], (1, 28, 28), 3), (1, 28, 28)),
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_compute_what_a_loop_does(module, shape: tuple[int, ...], threads: int) -> None:
    model, *rest = case(module(), shape)
    before = torch.random.get_rng_state()
    for ours, theirs in zip(
        train(Threaded(model, threads), *rest), train(Looped(model), *rest), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert torch.equal(torch.random.get_rng_state(), before)


class Looking(nn.Module):
    """A small network that notes how its images lie, and may want them one after another."""

    seen: ClassVar[list[bool]] = []  # by all threads

    def __init__(self, *, flat: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.last, self.flat = nn.Linear(4 * 36, 3), flat

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.is_contiguous(memory_format=torch.channels_last))
        y = self.norm(self.conv(x)).relu()
        return self.last(y.view(len(y), -1) if self.flat else y.flatten(1))


@pytest.mark.parametrize(("flat", "times"), [(False, 3 * WORKERS + 1), (True, 1)])
def test_images_lie_channels_last_where_a_network_can_read_them(flat: bool, times: int) -> None:
    model, *rest = case(Looking(flat=flat), (3, 8, 8))
    Looking.seen.clear()
    ours = train(Threaded(model, 2), *rest)
    assert (len(Looking.seen), sum(Looking.seen)) == (3 * WORKERS + 1, times)  # one is the trial
    for own, expected in zip(ours, train(Looped(model), *rest), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)  # batches counted once


def test_images_of_one_channel_lie_channels_last() -> None:
    model, *rest = case(MODELS["cnn"]((1, 12, 12), 3, width=4), (1, 12, 12))
    laid = Threaded(model, 1)._laid(*rest)
    assert laid.inputs.stride()[2:] == (1, 12, 1)
    assert torch.equal(laid.inputs, rest[2].inputs)
    for ours, theirs in zip(
        train(Threaded(model, 2), *rest), train(Looped(model), *rest), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.fixture
def two_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_cores")
def test_threads_of_torch_stay_as_many_as_they_were() -> None:
    model, *rest = case(mlp((5,), 3))
    engine, found = Threaded(model, 2), []
    for _ in engine(*rest):
        assert torch.get_num_threads() == 1
    own = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    own.start()
    own.join(seconds(60))
    assert (torch.get_num_threads(), found) == (2, [2])
    some = engine(*rest)
    next(some)
    some.close()
    assert torch.get_num_threads() == 2


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x[0, 0] == 3):
            raise KeyError("a sample that it does not like")
        return self.layer(x)


def test_an_error_comes_out_as_from_a_loop_and_the_engine_goes_on() -> None:
    model, params, buffers, batch = case(Failing())
    engine = Threaded(model, 2)
    batch.inputs[3, 0, 0] = 3
    found = []
    with pytest.raises(KeyError, match="a sample that it does not like"):
        found.extend(each.rows.start for each in engine(params, buffers, batch))
    assert found == [0, 1, 2]
    batch.inputs[3, 0, 0] = 0
    assert len(list(engine(params, buffers, batch))) == WORKERS


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.randn_like(x))


@pytest.mark.usefixtures("two_cores")
def test_models_that_draw_or_have_hooks_are_not_for_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(race, "_in_passes", lambda engine, *rest: (engine, 1.0))
    monkeypatch.setattr(
        race, "_seconds", lambda engine, *rest: 0.1 if isinstance(engine, Threaded) else 0.2
    )
    hooked = mlp((5,), 3)
    hooked[1].register_forward_hook(lambda *_: None)
    for module, taken in ((mlp((5,), 3), "threads"), (hooked, "looped"), (Noise(), "looped")):
        model, _, _, batch = case(module)
        assert choose("auto", 0, model, model.start(), batch).name == taken
    for module, why in ((hooked, "layer '1' has a hook"), (Noise(), "draws random numbers")):
        model, _, _, batch = case(module)
        with pytest.raises(ValueError, match=why):
            choose("threads", 0, model, model.start(), batch)
    assert why_not(mlp((5,), 3)) == ""


def test_threads_as_configured() -> None:
    model, _, _, batch = case(mlp((5,), 3))
    for chunk in (1, 3, 99):
        choice = choose("threads", chunk, model, model.start(), batch)
        assert choice[:3] == ("threads", min(chunk, WORKERS), "as configured")
    with pytest.raises(ValueError, match="0 threads are none"):
        Threaded(model, 0)


PROGRAM = """
import signal, torch
from torch import nn
from partavg import Schedule, Simulation
signal.signal(signal.SIGINT, signal.default_int_handler)
x = torch.randn(40, 5)
simulation = Simulation(
    nn.Linear(5, 3), nn.functional.cross_entropy, (x, torch.randint(0, 3, (40,))),
    list(torch.arange(40).view(4, 10)), schedule=Schedule.partial(2), lr=0.1, batch=5,
    engine="threads", chunk=3,
)
try:
    for record in simulation.train(until=10**9):
        if record.step == 5:
            signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("stopped at", simulation.workers.step)
"""


def test_a_program_that_is_stopped_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=seconds(120)
    )
    assert (done.returncode, done.stdout) == (0, "stopped at 5\n"), done.stderr
