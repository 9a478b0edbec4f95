"""The training loop against textbook twins and by its identities, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import oracles
from tests.problems import LAYOUT, Quadratic, plan, quadratic_batches, start
from tests.strategies import rows, schedules

from partavg.core.average import consensus, discrepancy
from partavg.core.cuts import PARTITIONS
from partavg.core.loop import Batch, train
from partavg.core.partition import Span
from partavg.core.plan import Plan
from partavg.core.schedule import Schedule
from partavg.core.seeds import fold
from partavg.solvers.sgd import SGD

M, D = 5, LAYOUT.size


def gradient(batches, i: int, k: int, x: np.ndarray) -> np.ndarray:
    inputs, targets, _ = batches(k)
    return inputs[i, 0].numpy() * (x - targets[i, 0].numpy())


@pytest.mark.parametrize("maker", [name for name in PARTITIONS if name != "whole"])
@pytest.mark.parametrize("tau", [2, 3])
def test_partial_averaging_is_algorithm_1(maker: str, tau: int) -> None:
    batches = quadratic_batches(M, D)
    x_0 = rows(1, D, 1)
    how = plan(Schedule.partial(tau), M, maker)
    subsets = [np.flatnonzero(how.partition.owners().numpy() == j) for j in range(tau)]
    workers = start(SGD(), tau, x_0.repeat(M, 1))
    expected = oracles.algorithm_1(
        x_0[0].numpy(), lambda i, k, x: gradient(batches, i, k, x), 0.3, tau, subsets, M, K=20
    )
    records = train(
        workers, Quadratic(), batches, plan=how, solver=SGD(), lr=lambda k: 0.3, until=20
    )
    for record, x_k in zip(records, expected, strict=True):
        np.testing.assert_allclose(workers.params.numpy(), np.stack(x_k), rtol=0, atol=1e-12)
        assert record.due == (record.step % tau,)
    u_K = consensus(workers.params, how.weights)
    np.testing.assert_allclose(u_K.numpy(), np.mean(x_k, 0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("tau", [1, 4])
def test_one_part_is_periodic_averaging_with_weights(tau: int) -> None:
    batches = quadratic_batches(M, D)
    x_0 = rows(1, D, 1)
    p = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    workers = start(SGD(), 1, x_0.repeat(M, 1))
    expected = oracles.periodic_averaging(
        x_0[0].numpy(), lambda i, k, x: gradient(batches, i, k, x), 0.3, tau, p.numpy(), K=20
    )
    records = train(
        workers,
        Quadratic(),
        batches,
        plan=plan(Schedule.periodic(tau), M, "whole", p),
        solver=SGD(),
        lr=lambda k: 0.3,
        until=20,
    )
    for _, x_k in zip(records, expected, strict=True):
        np.testing.assert_allclose(workers.params.numpy(), np.stack(x_k), rtol=0, atol=1e-12)


@pytest.mark.parametrize("solver", [SGD(), SGD(momentum=0.9), SGD(momentum=0.9, nesterov=True)])
def test_interval_1_is_sgd_on_the_joined_batch(solver: SGD) -> None:
    batches = quadratic_batches(M, D)

    def joined(step: int) -> Batch:
        """The mean of the workers' gradients is the gradient of one worker with this batch."""
        inputs, targets, keys = batches(step)
        curvature = inputs.mean(0, keepdim=True)
        center = (inputs * targets).mean(0, keepdim=True) / curvature
        return Batch(curvature, center, keys[:1])

    x_0 = rows(1, D, 1)
    many = start(solver, 1, x_0.repeat(M, 1))
    one = start(solver, 1, x_0.clone())
    for workers, source in ((many, batches), (one, joined)):
        how = plan(Schedule.synchronous(), len(workers.params))
        for _ in train(
            workers, Quadratic(), source, plan=how, solver=solver, lr=lambda k: 0.1, until=30
        ):
            pass
    for row in many.params:
        torch.testing.assert_close(row, one.params[0], rtol=0, atol=1e-9)


@given(schedules(), st.sampled_from(["channel", "contiguous", "blocks"]))
def test_without_steps_all_workers_agree_after_one_cycle(schedule: Schedule, maker: str) -> None:
    workers = start(SGD(), schedule.parts, rows(M, D, 2))
    how = plan(schedule, M, maker)
    mean = consensus(workers.params, how.weights)
    for record in train(
        workers,
        Quadratic(),
        quadratic_batches(M, D),
        plan=how,
        solver=SGD(),
        lr=lambda k: 0.0,
        until=schedule.interval,
    ):
        last = record
    torch.testing.assert_close(workers.params, mean.expand(M, -1), rtol=0, atol=1e-12)
    assert last.bytes == D * 8, "a cycle sends the model once, whatever the number of parts"
    assert last.messages == schedule.parts


def test_permuting_the_workers_permutes_the_rows() -> None:
    batches = quadratic_batches(M, D)
    order = torch.tensor([3, 0, 4, 1, 2])
    x_0, p = rows(M, D, 1), torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    solver = SGD(momentum=0.9, weight_decay=0.01)

    def run(order: torch.Tensor) -> torch.Tensor:
        workers = start(solver, 4, x_0[order])
        for _ in train(
            workers,
            Quadratic(),
            lambda k: Batch(*(field[order] for field in batches(k))),
            plan=plan(Schedule.partial(4), M, weights=p[order]),
            solver=solver,
            lr=lambda k: 0.1,
            until=23,
        ):
            pass
        return workers.params

    torch.testing.assert_close(run(order), run(torch.arange(M))[order], rtol=0, atol=1e-12)


def test_workers_with_the_same_data_are_one_worker_alone() -> None:
    batches = quadratic_batches(1, D)
    x_0 = rows(1, D, 1)
    results = []
    for count in (1, M):
        workers = start(SGD(momentum=0.9), 4, x_0.repeat(count, 1))
        for _ in train(
            workers,
            Quadratic(),
            lambda k, n=count: Batch(*(field.expand(n, *field.shape[1:]) for field in batches(k))),
            plan=plan(Schedule.partial(4), count),
            solver=SGD(momentum=0.9),
            lr=lambda k: 0.1,
            until=25,
        ):
            pass
        results.append(workers.params)
        uniform = torch.full((count,), 1 / count, dtype=torch.float64)
        assert discrepancy(workers.params, uniform).sum() < 1e-25
    torch.testing.assert_close(results[1], results[0].expand(M, -1), rtol=0, atol=1e-12)


def test_clocks_count_steps_and_learning_rates_since_a_part_was_averaged() -> None:
    workers = start(SGD(), 2, rows(3, D, 0))
    records = train(
        workers,
        Quadratic(),
        quadratic_batches(3, D),
        plan=plan(Schedule(4, 2), 3),
        solver=SGD(),
        lr=lambda k: float(k),
        until=7,
    )
    seen = {}
    for record in records:
        seen[record.step] = (workers.steps[0].tolist(), workers.lr_sum[0].tolist())
    assert seen[1] == ([1, 1], [1, 1])
    assert seen[2] == ([2, 0], [3, 0]), "the first averaging takes part 1"
    assert seen[4] == ([0, 2], [0, 7])
    assert seen[6] == ([2, 0], [11, 0])
    assert seen[7] == ([3, 1], [18, 7])
    assert workers.steps.equal(workers.steps[:1].expand(3, -1))


def test_a_run_can_stop_between_records_and_go_on() -> None:
    results = []
    for stops in ((20,), (7, 8, 20)):
        workers = start(SGD(momentum=0.9), 4, rows(M, D, 0))
        for until in stops:
            for _ in train(
                workers,
                Quadratic(),
                quadratic_batches(M, D),
                plan=plan(Schedule.partial(4), M),
                solver=SGD(momentum=0.9),
                lr=lambda k: 0.1 / k,
                until=until,
            ):
                pass
        results.append(workers)
    assert torch.equal(results[0].params, results[1].params)
    assert (results[0].bytes, results[0].messages) == (results[1].bytes, results[1].messages)


def test_a_plan_whose_pieces_do_not_fit_is_refused() -> None:
    weights = torch.ones(1, dtype=torch.float64)
    partition = PARTITIONS["channel"](LAYOUT, 2, 0)
    with pytest.raises(ValueError, match="schedule has 4 parts, the partition 2 and the buffers 1"):
        Plan(Schedule.partial(4), partition, ((Span(0, 1),),), weights)


def test_seeds_depend_on_the_whole_path() -> None:
    seeds = {fold(0), fold(1), fold(0, 1), fold(0, "1", 1), fold(0, "a", 1), fold(0, "a", 2)}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
