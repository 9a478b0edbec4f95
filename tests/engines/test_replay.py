"""Replays of short passes: the bits of the passes themselves, and none where they might differ."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.engines.test_fused import OWN, problem, small
from torch import Tensor, nn
from torch.nn import functional as F

from partavg import SGD, Schedule, Simulation, adamw, diloco, iid
from partavg.core.loop import Batch
from partavg.core.participation import Participation
from partavg.engines.fused import Fused, replay
from partavg.engines.fused.replay import Replayed
from partavg.engines.model import RowModel
from partavg.losses import huber, mse, next_token
from partavg.models.gpt import gpt

CPU = torch.device("cpu")
CALLS = 8  # three as they are, one written down, one compared, and replays


@pytest.fixture(autouse=True)
def _any_pass_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_SHORT", float("inf"))


def given(engine: Any, rows: list[Tensor], batches: list[Batch]) -> list[Tensor]:
    """All that an engine gives in some steps, and the rows after them."""
    found = []
    for batch in batches:
        for part in engine(*rows, batch):
            found.append(part.losses)
            for columns, grads in part.pieces:
                found.append(grads.clone())
                rows[0][part.rows, columns] -= grads.mul_(0.1)  # which may be used up
    return [*found, *rows]


def replays(engine: Fused) -> list[bool]:
    """For each kind of batch whether it is replayed by now."""
    assert engine._replayed
    return [known._program is not None for known in engine._replayed._known.values()]


def both(
    monkeypatch: pytest.MonkeyPatch, model: RowModel, rows: list[Tensor], batches: list[Batch]
) -> Fused:
    """An engine with replays, seen to give the bits of one without."""
    engine = Fused(model, 9)
    found = given(engine, [row.clone() for row in rows], batches)
    with monkeypatch.context() as without:
        without.setattr(replay, "_SHORT", 0)
        expected = given(Fused(model, 9), [row.clone() for row in rows], batches)
    assert all(map(torch.equal, found, expected))
    return engine


def others(batch: Batch) -> list[Batch]:
    """Batches like one, each with other samples and keys."""
    turns = [torch.randperm(batch.targets.shape[1]) for _ in range(CALLS)]
    return [
        Batch(batch.inputs[:, turn], batch.targets[:, turn], batch.keys + 3 * place)
        for place, turn in enumerate(turns)
    ]


@pytest.mark.parametrize("name", ["cnn", "dropout_cnn", "lstm", "mlp", "wrn16_8", *OWN])
def test_a_replay_gives_the_bits_of_the_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, *rows, batch = problem(*small(name), torch.float32)
    assert replays(both(monkeypatch, model, rows, others(batch))) == [True]


@pytest.mark.parametrize("options", [{}, {"ignore_index": 1}, {"label_smoothing": 0.1}])
def test_losses_of_classes_are_replayed(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, *rows, batch = problem(nn.Linear(4, 3), (4,), torch.float64)
    model = RowModel(nn.Linear(4, 3).double(), nn.CrossEntropyLoss(**options), CPU)
    batch = batch._replace(inputs=batch.inputs.double())
    assert all(replays(both(monkeypatch, model, rows, others(batch))))


@pytest.mark.parametrize("loss", [F.mse_loss, mse, partial(huber, delta=0.5), nn.L1Loss()])
def test_losses_of_numbers_are_replayed(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = RowModel(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), loss, CPU)
    rows = [row.repeat(3, 1) for row in model.start()]
    batches = [Batch(torch.randn(3, 6, 4), torch.randn(3, 6, 2), torch.arange(3))] * CALLS
    assert replays(both(monkeypatch, model, rows, batches)) == [True]


TRAININGS: dict[str, dict[str, Any]] = {
    "redraws": {"participation": Participation(6, 3, 8)},
    "listening, in turn": {"participation": Participation(6, 3, 8, "listen", rolling=True)},
    "frozen": {"buffers": "frozen", "freeze_at": 12},
    "personal": {"local": ("3.weight", "3.bias")},
    "delayed": {"delay": 2},
    "outer steps": {"solver": diloco(lr=0.5)},
    "Adam": {"solver": adamw(weight_decay=0.1)},
}


@pytest.mark.parametrize("name", TRAININGS)
def test_whole_trainings_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"solver": SGD(momentum=0.9), **TRAININGS[name]}
    torch.manual_seed(0)
    x, y = torch.randn(90, 4), torch.randint(3, (90,))
    x[:2], y[:3] = x[:2] * 40, -100

    def trained() -> tuple[Fused, list[Tensor]]:
        torch.manual_seed(1)
        norm = nn.BatchNorm1d(5)
        net = nn.Sequential(nn.Linear(4, 5), norm, nn.Dropout(0.2), nn.Linear(5, 3))
        split = [torch.arange(90)[client::6] for client in range(6)]
        made = Simulation(
            net, F.cross_entropy, (x, y), split, schedule=Schedule.partial(4), lr=0.1, batch=5,
            engine="fused", **options,
        )  # fmt: skip
        found = [record.losses for record in made.train(30)]
        saved = made.state()
        made.load(saved)
        found += [record.losses for record in made.train(40)]
        return made._engine, [*found, made.workers.params, made.workers.buffers]  # type: ignore[return-value]

    engine, found = trained()
    assert any(replays(engine))
    monkeypatch.setattr(replay, "_SHORT", 0)
    _, expected = trained()
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3, "positions": "learned", "bias": True}])
def test_language_models_are_replayed(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = gpt((6,), 20, layers=2, width=8, heads=2, **options)
    model = RowModel(net, next_token, CPU)
    rows = [row.repeat(3, 1) for row in model.start()]
    batches = [Batch(*torch.randint(20, (2, 3, 4, 6)), torch.arange(3) + k) for k in range(CALLS)]
    assert replays(both(monkeypatch, model, rows, batches)) == [True]


def test_classes_are_still_looked_at() -> None:
    model, *rows, batch = problem(*small("mlp"), torch.float32)
    engine = Fused(model, 9)
    given(engine, rows, [batch] * CALLS)
    assert replays(engine) == [True]
    for wrong in (3, -1):
        batch.targets[1, 2] = wrong
        with pytest.raises(IndexError, match=rf"Target {wrong} is out of bounds"):
            given(engine, rows, [batch])


def test_classes_to_ignore_may_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    model, *rows, batch = problem(*small("mlp"), torch.float32)
    some = batch.each(Tensor.clone)
    some.targets[:, ::3] = -100
    engine = both(monkeypatch, model, rows, [batch, some] * CALLS)
    assert replays(engine) == [True, True]


def test_short_batches_and_other_rows_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    model, *rows, batch = problem(*small("norms"), torch.float32)
    last = Batch(batch.inputs[:, :3], batch.targets[:, :3], batch.keys)
    engine = both(monkeypatch, model, rows, [batch, batch, last] * CALLS)
    assert replays(engine) == [True, True]
    elsewhere = [row.clone() for row in rows]
    expected = given(Fused(model, 9), [row.clone() for row in rows], [batch])
    assert all(map(torch.equal, given(engine, elsewhere, [batch]), expected))
    assert replays(engine) == [False]


def test_few_kinds_of_batches_are_known() -> None:
    model, *rows, batch = problem(*small("mlp"), torch.float32)
    engine = Fused(model, 9)
    sizes = [torch.randint(8, (count,)) for count in range(1, 13)]
    lengths = [Batch(batch.inputs[:, own], batch.targets[:, own], batch.keys) for own in sizes]
    given(engine, rows, lengths * CALLS)
    assert replays(engine) == [True] * replay._KINDS


def test_some_workers_at_a_time_and_long_passes_are_not_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, *rows, batch = problem(*small("mlp"), torch.float32)
    engine = Fused(model, 2)
    given(engine, rows, [batch] * CALLS)
    assert replays(engine) == []
    monkeypatch.setattr(replay, "_SHORT", 0)
    engine = Fused(model, 9)
    given(engine, rows, [batch] * CALLS)
    assert replays(engine) == [False]


def test_a_loss_of_ones_own_may_count_its_calls() -> None:
    calls = []

    def warming(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(None)
        return F.cross_entropy(outputs, targets) * (9 if len(calls) > before + CALLS else 1)

    before = 1000
    x, y = torch.randn(24, 4), torch.arange(24) % 3
    simulation = Simulation(
        nn.Linear(4, 3), warming, (x, y), iid(y, 3, 0), schedule=Schedule.partial(2), lr=0.0,
        batch=8, engine="fused",
    )  # fmt: skip
    before = len(calls)
    first, *_, last = [float(record.losses.mean()) for record in simulation.train(2 * CALLS)]
    assert last > 4 * first


def passing(
    steps: Callable[[Tensor, Tensor], Tensor],
) -> tuple[list[Tensor], bool]:
    """What replays of some steps on buffers and inputs give, and whether there were any."""

    def call(params: Tensor, buffers: Tensor, batch: Batch, ignored: int | None) -> Any:
        losses = steps(buffers, batch.inputs)  # type: ignore[arg-type]
        return losses, iter([(slice(0, 1), losses[:, None] * 2)])

    replayed, rows, found = Replayed(call), (torch.zeros(3, 0), torch.ones(3, 2)), []
    for place in range(CALLS):
        batch = Batch(torch.full((3, 2), float(place)), torch.zeros(3, 2), torch.zeros(3))
        losses, pieces = replayed(*rows, batch, None)
        assert torch.equal(next(iter(pieces))[1], losses[:, None] * 2)
        found.append(losses)
    (known,) = replayed._known.values()
    return found, known._program is not None


def counting() -> Callable[[Tensor, Tensor], Tensor]:
    calls: list[None] = []

    def steps(rows: Tensor, x: Tensor) -> Tensor:
        calls.append(None)
        return (rows * x).sum(1) * len(calls)

    return steps


def unseen(rows: Tensor, x: Tensor) -> Tensor:
    """Numbers of a batch that come another way than by operations."""
    return torch.from_numpy((x * 2).numpy().copy()).sum(1)


DIFFERENT = {
    "counts its calls": (counting, lambda place: 2.0 * place * (place + 1)),
    "looks at a number": (
        lambda: lambda rows, x: x.sum(1) * (2 if float(x.max()) > 5 else 1),
        lambda place: 2.0 * place * (1 + (place > 5)),
    ),
    "counts numbers": (
        lambda: lambda rows, x: x.sum(1) + len((x[0] > 5).nonzero()),
        lambda place: 2.0 * place + 2 * (place > 5),
    ),
    "picks by a mask": (
        lambda: lambda rows, x: x.sum(1) + len(x[x > 5]),
        lambda place: 2.0 * place + 6 * (place > 5),
    ),
    "leaves torch": (lambda: unseen, lambda place: 4.0 * place),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_depends_on_more_than_shapes_is_not_replayed(name: str) -> None:
    make, expected = DIFFERENT[name]
    found, replayed = passing(make())
    assert [float(losses[0]) for losses in found] == [expected(place) for place in range(CALLS)]
    assert not replayed


def test_random_numbers_are_drawn_anew() -> None:
    found, replayed = passing(lambda rows, x: torch.rand(3) + 0 * x.sum(1))
    assert not replayed
    assert len({float(losses[0]) for losses in found}) == CALLS


def test_buffers_are_changed_where_they_are_and_once() -> None:
    def steps(rows: Tensor, x: Tensor) -> Tensor:
        first, second = rows.split(1, 1)
        first += 1
        return (first * second).view(3) + x.sum(1)

    found, replayed = passing(steps)
    assert replayed
    assert [float(losses[0]) for losses in found] == [2.0 + 3 * place for place in range(CALLS)]


def test_a_torch_that_shows_no_operations_trains_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", None)
    found, replayed = passing(lambda rows, x: (rows * x).sum(1))
    assert [float(losses[0]) for losses in found] == [2.0 * place for place in range(CALLS)]
    assert not replayed
