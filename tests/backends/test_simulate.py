"""The simulator end to end, on modules and data such as a user has."""

from typing import Any

import numpy as np
import pytest
import torch
from tests import oracles
from tests.outside import median
from torch import nn
from torch.nn import functional as F

from partavg import Layout, Participation, Partition, Schedule, Simulation, Span, iid
from partavg.core.cuts import PARTITIONS, contiguous
from partavg.data.batches import Batches
from partavg.evaluation import evaluate, recompute_statistics_
from partavg.models import mlp
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD

M, BATCH, TAU, ETA = 6, 5, 4, 0.05


def regression():
    """A linear model with squared loss on random data, in float64."""
    torch.manual_seed(0)
    model = nn.Linear(7, 3).double()
    x, y = torch.randn(90, 7).double(), torch.randn(90, 3).double()
    return model, x, y, iid(torch.zeros(90, dtype=torch.long), M, 0)


def least_squares_gradient(x, y, split):
    """g(i, k, ·) of F.mse_loss on worker i's k-th batch, by hand."""
    batches = Batches(split, BATCH, seed=0)

    def g(i: int, k: int, row: np.ndarray) -> np.ndarray:
        indices = batches(k)[0][i].numpy()
        X, Y = x.numpy()[indices], y.numpy()[indices]
        W, b = row[:21].reshape(3, 7), row[21:]
        error = 2 * (X @ W.T + b - Y) / Y.size
        return np.concatenate([(error.T @ X).ravel(), error.sum(0)])

    return g


@pytest.mark.parametrize("engine", ["looped", "vmapped"])
@pytest.mark.parametrize("maker", ["channel", "contiguous", "blocks"])
def test_the_whole_system_is_algorithm_1(engine: str, maker: str) -> None:
    model, x, y, split = regression()
    simulation = Simulation(
        model, F.mse_loss, (x, y), split,
        schedule=Schedule.partial(TAU), lr=ETA, batch=BATCH, partition=maker, engine=engine,
    )  # fmt: skip
    x_0 = simulation.workers.params[0].numpy().copy()
    owners = simulation.partition.owners().numpy()
    subsets = [np.flatnonzero(owners == j) for j in range(TAU)]
    g = least_squares_gradient(x, y, split)
    expected = oracles.algorithm_1(x_0, g, ETA, TAU, subsets, M, K=25)
    for _, x_k in zip(simulation.train(25), expected, strict=True):
        rows = simulation.workers.params.numpy()
        np.testing.assert_allclose(rows, np.stack(x_k), rtol=0, atol=1e-12)
        discrepancy = simulation.discrepancy()
        assert discrepancy.total == pytest.approx(oracles.discrepancy(x_k))
        assert sum(discrepancy.per_part) == pytest.approx(discrepancy.total)
    u_K = torch.cat([p.detach().reshape(-1) for p in simulation.consensus().parameters()])
    np.testing.assert_allclose(u_K.numpy(), np.mean(x_k, 0), rtol=0, atol=1e-12)


def test_weights_bysamples() -> None:
    model, x, y, _ = regression()
    split = [torch.arange(0, 10), torch.arange(10, 90)]
    simulation = Simulation(
        model, F.mse_loss, (x, y), split,
        schedule=Schedule.periodic(3), lr=ETA, batch=BATCH, weights="samples", engine="looped",
    )  # fmt: skip
    g = least_squares_gradient(x, y, split)
    x_0 = simulation.workers.params[0].numpy().copy()
    p = np.array([10 / 90, 80 / 90])
    expected = oracles.periodic_averaging(x_0, g, ETA, 3, p, K=7)
    for _, x_k in zip(simulation.train(7), expected, strict=True):
        rows = simulation.workers.params.numpy()
        np.testing.assert_allclose(rows, np.stack(x_k), rtol=0, atol=1e-12)


def classification(*, buffers: str = "part", schedule: Schedule, steps: int = 0) -> Simulation:
    """A network with BatchNorm on two classes that differ between workers."""
    torch.manual_seed(0)
    x = torch.randn(120, 6) + torch.arange(120)[:, None] / 60
    y = (x.sum(1) > 6).long()
    simulation = Simulation(
        mlp((6,), 2, hidden=(8, 8), batch_norm=True), F.cross_entropy, (x, y),
        list(torch.arange(120).view(4, 30)),
        schedule=schedule, lr=0.1, batch=10, solver=SGD(0.9), buffers=buffers, engine="vmapped",
    )  # fmt: skip
    for _ in simulation.train(steps):
        pass
    return simulation


def spread(simulation: Simulation) -> torch.Tensor:
    """Deviation between workers of each buffer column."""
    return simulation.workers.buffers.std(0)


def test_statistics_are_averaged_with_the_part_of_their_channel() -> None:
    simulation = classification(schedule=Schedule.partial(4), steps=9)
    equal = spread(simulation) < 1e-6
    parts = [
        [c for span in part for c in range(*span)] for part in simulation._current.plan.buffer_parts
    ]
    assert equal[parts[9 % 4]].all(), "part 1 was averaged just now"
    moving = torch.cat([torch.tensor(p) for j, p in enumerate(parts) if j != 1])
    # Only the counters of batches, which are equal anyway, agree in the other parts.
    assert int(equal[moving].sum()) <= 2


@pytest.mark.parametrize(
    ("policy", "agree"), [("every", True), ("local", False), ("recompute", False)]
)
def test_policies_of_statistics(policy: str, agree: bool) -> None:
    simulation = classification(buffers=policy, schedule=Schedule.partial(4), steps=9)
    means_and_variances = 2 * 2 * 8
    assert int((spread(simulation) > 1e-6).sum()) == (0 if agree else means_and_variances)


def test_traffic_counts_the_statistics_that_are_sent() -> None:
    d, b = classification(schedule=Schedule.partial(4)).workers.params.shape[1], 34
    for policy, columns in {"part": d + b, "every": d + 4 * b, "local": d}.items():
        simulation = classification(buffers=policy, schedule=Schedule.partial(4), steps=4)
        assert simulation.workers.bytes == 4 * columns, policy
        assert simulation.workers.messages == 4


def test_recomputed_statistics_are_those_of_the_trainingsamples() -> None:
    simulation = classification(buffers="recompute", schedule=Schedule.partial(4), steps=9)
    module = simulation.consensus()
    first = module[1](simulation.samples.inputs)
    torch.testing.assert_close(module[2].running_mean, first.mean(0).detach())
    assert module[2].momentum == 0.1
    assert not module.training
    assert not simulation.worker(0).training


def test_recomputing_leaves_layers_in_evaluation_mode_alone() -> None:
    """As when someone fine-tunes around a frozen BatchNorm."""
    torch.manual_seed(0)
    model = mlp((6,), 2, hidden=(8, 8), batch_norm=True)
    model[2].eval().running_mean.fill_(3.0)
    x = torch.randn(40, 6)
    simulation = Simulation(
        model, F.cross_entropy, (x, (x.sum(1) > 0).long()), list(torch.arange(40).view(4, 10)),
        schedule=Schedule.partial(2), lr=0.1, batch=4, buffers="recompute",
    )  # fmt: skip
    list(simulation.train(3))
    norms = [layer for layer in simulation.consensus() if isinstance(layer, nn.BatchNorm1d)]
    assert norms[0].running_mean.tolist() == [3.0] * 8
    assert norms[0].num_batches_tracked == 0
    assert norms[1].running_mean.abs().sum() > 0
    assert not any(norm.training for norm in norms)


def test_recomputing_leaves_dropout_off() -> None:
    module = mlp((6,), 2, hidden=(8,), batch_norm=True, dropout=0.5)
    x = torch.randn(40, 6)
    means = []
    for _ in range(2):
        recompute_statistics_(module, x)
        means.append(module[2].running_mean.clone())
    assert torch.equal(*means)


def test_recomputing_never_leaves_a_batch_of_one() -> None:
    module = mlp((6,), 2, hidden=(8,), batch_norm=True)
    recompute_statistics_(module, torch.randn(501, 6))
    assert module[2].running_mean.isfinite().all()


def test_buffers_outside_the_state_dict_are_neither_stacked_nor_sent() -> None:
    class Masked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 2)
            self.register_buffer("mask", torch.ones(100, 6), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * self.mask[0])

    x = torch.randn(40, 6)
    simulation = Simulation(
        Masked(), F.cross_entropy, (x, (x.sum(1) > 0).long()), list(torch.arange(40).view(4, 10)),
        schedule=Schedule.partial(2), lr=0.1,
    )  # fmt: skip
    for _ in simulation.train(2):
        pass
    assert simulation.workers.bytes == 4 * 14


def test_a_network_learns_and_is_evaluated_as_a_plain_module() -> None:
    simulation = classification(schedule=Schedule.partial(4), steps=120)
    found = simulation.evaluate(simulation.samples)
    assert found.accuracy is not None
    assert found.accuracy > 0.9
    module = simulation.consensus().eval()
    with torch.no_grad():
        outputs = module(simulation.samples.inputs)
    assert found.loss == pytest.approx(
        float(F.cross_entropy(outputs, simulation.samples.targets)), abs=1e-6
    )


def test_accuracy_counts_every_target() -> None:
    """Also where a sample has several, as a sentence has words."""
    outputs = torch.eye(3)[torch.tensor([[0, 1], [2, 2]])].movedim(-1, 1)
    found = evaluate(nn.Identity(), F.cross_entropy, (outputs, torch.tensor([[0, 1], [2, 0]])))
    assert found.accuracy == 0.75


def test_regression_has_no_accuracy() -> None:
    model, x, y, split = regression()
    simulation = Simulation(
        model, F.mse_loss, (x, y), split, schedule=Schedule.partial(TAU), lr=ETA, engine="looped"
    )
    assert simulation.evaluate((x, y)).accuracy is None


def test_a_partition_and_a_learning_rate_of_ones_own() -> None:
    model, x, y, split = regression()
    simulation = Simulation(
        model, F.mse_loss, (x, y), split,
        schedule=Schedule.partial(2), lr=lambda step: 0.1 / step,
        partition=contiguous(Layout(("weight", "bias"), ((3, 7), (3,))), 2), engine="looped",
    )  # fmt: skip
    assert simulation.partition.sizes == (12, 12)
    assert [record.lr for record in simulation.train(3)] == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_workers_differ_and_the_consensus_is_their_mean() -> None:
    simulation = classification(schedule=Schedule.periodic(100), steps=5)
    rows = [dict(simulation.worker(i).named_parameters()) for i in range(4)]
    for name, value in simulation.consensus().named_parameters():
        mean = torch.stack([row[name] for row in rows]).mean(0)
        torch.testing.assert_close(value, mean)
    assert simulation.discrepancy().total > 0


def test_two_runs_with_one_seed_are_bit_identical() -> None:
    one, other = (classification(schedule=Schedule.partial(4), steps=20) for _ in range(2))
    assert torch.equal(one.workers.params, other.workers.params)
    assert torch.equal(one.workers.buffers, other.workers.buffers)


SINGLE = tuple((Span(column, column + 1),) for column in range(4))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"partition": "channels"}, "partition 'channels' is not known: did you mean 'channel'?"),
        ({"partition": Partition(4, SINGLE)}, "the partition has 4 columns and the model"),
        ({"partition": len}, "partition len is none: give a partavg.Partition"),
        ({"weights": "size"}, "weights 'size' is not known: use uniform or samples"),
        ({"buffers": "mean"}, "buffers 'mean' is not known: use part, every, local, recompute"),
        ({"partition": "layer"}, "cannot fill 4 parts: the model has 1 layers; use 1 to 1 parts"),
    ],
)
def test_bad_options_are_refused(options: dict, sentence: str) -> None:
    model, x, y, split = regression()
    with pytest.raises(ValueError, match=sentence):
        Simulation(model, F.mse_loss, (x, y), split, schedule=Schedule.partial(TAU), lr=ETA,
                   engine="looped", **options)  # fmt: skip


def test_every_partition_trains() -> None:
    for name in sorted(PARTITIONS):
        simulation = classification_with(name)
        for _ in simulation.train(12):
            pass
        assert simulation.workers.params.isfinite().all()


def classification_with(partition: str) -> Simulation:
    x = torch.randn(40, 6)
    schedule = Schedule.periodic(3) if partition == "whole" else Schedule.partial(3)
    return Simulation(
        mlp((6,), 2, hidden=(8, 8)), F.cross_entropy, (x, (x.sum(1) > 0).long()),
        list(torch.arange(40).view(4, 10)),
        schedule=schedule, lr=0.1, partition=partition, engine="looped",
    )  # fmt: skip


class Fickle(nn.Module):
    """Changes its parameters and a buffer whenever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3, max_norm=0.1)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.norm(self.embedding(x))


def test_evaluating_all_workers_is_evaluating_each_and_changes_none() -> None:
    torch.manual_seed(0)
    x, y = torch.arange(40) % 5, torch.arange(40) % 3
    simulation = Simulation(
        Fickle(), F.cross_entropy, (x, y), list(torch.arange(40).view(4, 10)),
        schedule=Schedule.partial(2), lr=0.1, batch=4, engine="looped",
    )  # fmt: skip
    for _ in simulation.train(3):
        pass
    skeleton = simulation._model.skeleton
    rows = simulation.workers.params.clone(), simulation.workers.buffers.clone()
    modes, calls = [part.training for part in skeleton.modules()], float(skeleton.calls)
    found = simulation.evaluate_workers((x, y))
    assert torch.equal(simulation.workers.params, rows[0])
    assert torch.equal(simulation.workers.buffers, rows[1])
    assert [part.training for part in skeleton.modules()] == modes
    assert float(skeleton.calls) == calls
    assert found == [simulation.evaluate_worker(row, (x, y)) for row in range(4)]
    assert len({one.loss for one in found}) == 4
    assert simulation.evaluate_workers((x, y), 2) == found[:2]


def test_an_aggregate_cannot_go_on_from_what_was_saved_without_one() -> None:
    model, x, y, split = regression()

    def made(**more: Any) -> Simulation:
        return Simulation(
            model, F.mse_loss, (x, y), split, schedule=Schedule.partial(TAU), lr=ETA, **more
        )

    saved = made().state()
    made().load(saved)
    with pytest.raises(ValueError, match="= 'weighted_sum', and this"):
        made(aggregate=median).load(saved)
    of_0_1 = {name: value for name, value in saved.items() if name not in ("common", "settings")}
    made().load(of_0_1)
    with pytest.raises(ValueError, match="was saved without an aggregate of its own"):
        made(aggregate=median).load(of_0_1)
    with_one = made(aggregate=median)
    with_one.load(made(aggregate=median).state())
    assert with_one.workers.common is not None


def test_only_clients_that_were_active_are_kept_and_saved() -> None:
    model, x, y, _ = regression()
    split = [torch.tensor([client % len(x)]) for client in range(500)]
    who = Participation(clients=500, active=2, every=3)

    def made() -> Simulation:
        return Simulation(
            model, F.mse_loss, (x, y), split, schedule=Schedule.partial(TAU), lr=ETA,
            solver=SCAFFOLD(), participation=who, batch=1, engine="looped",
        )  # fmt: skip

    first, again, of_0_1 = made(), made(), made()
    for _ in first.train(10):
        pass
    left = sorted({int(client) for step in (1, 4, 7) for client in who(step)})
    saved = first.state()
    assert saved["bank"]["memory.control"]["clients"].tolist() == left
    assert len(saved["bank"]["memory.control"]["rows"]) == len(left)
    again.load(saved)
    of_0_1.load({**saved, "bank": {n: kept.whole() for n, kept in first.workers.bank.items()}})
    for simulation in (first, again, of_0_1):
        for _ in simulation.train(40):
            pass
    for other in (again, of_0_1):
        assert torch.equal(first.workers.params, other.workers.params)
        for name, kept in first.workers.bank.items():
            assert torch.equal(kept.whole(), other.workers.bank[name].whole())
    for name, other in (("clients", torch.tensor([0, 500])), ("rows", torch.zeros(1, 1))):
        wrong = {**saved["bank"]["memory.control"], name: other}
        with pytest.raises(ValueError, match=r"the state (is damaged in|has) bank"):
            made().load({**saved, "bank": {"memory.control": wrong}})


_OTHER = (None, "x", 3.5, -1, [], {}, torch.zeros(2))


@pytest.mark.parametrize("name", [
    "params", "buffers", "memory", "steps", "lr_sum", "taken", "step", "bytes", "messages", "bank",
    "pending", "notes", "settings",
])  # fmt: skip
def test_a_state_that_is_damaged_is_refused_with_a_sentence(name: str) -> None:
    model, x, y, split = regression()
    who = Participation(clients=len(split), active=2, every=3, redistribution="none")

    def made() -> Simulation:
        return Simulation(
            model, F.mse_loss, (x, y), split, schedule=Schedule.partial(TAU), lr=ETA,
            solver=SGD(momentum=0.9), participation=who,
        )  # fmt: skip

    saved = made().state()
    made().load(saved)
    for other in _OTHER:
        if isinstance(other, dict) and name in ("pending", "notes"):
            continue  # which are empty, too
        with pytest.raises(ValueError, match=r"the state (is damaged in|has|was saved with) "):
            made().load({**saved, name: other})
