"""Update rules against slow textbook twins and against each other, in float64."""

from collections.abc import Callable

import pytest
import torch
from tests.oracles import discrepancy
from tests.problems import Quadratic, quadratic_batches, start
from tests.solvers.setting import BOTH, STEPS, WEIGHTS, D, M, Textbook, lr, made, run, same
from tests.strategies import rows
from torch import Tensor

from partavg.core.loop import Batch, train
from partavg.core.pace import Fixed
from partavg.core.participation import Participation
from partavg.core.partition import Partition, Span
from partavg.core.plan import Plan
from partavg.core.schedule import Schedule
from partavg.core.solver import Solver
from partavg.core.workers import Workers
from partavg.solvers import SOLVERS
from partavg.solvers.adam import Adam, adam
from partavg.solvers.fednova import FedNova
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import Outer
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD
from partavg.solvers.vrl_sgd import VRLSGD

# FedProx


@pytest.mark.parametrize("schedule", BOTH)
@pytest.mark.parametrize("base", [SGD(), SGD(momentum=0.9, weight_decay=0.01), adam()])
def test_fedprox_without_mu_is_its_base(schedule: Schedule, base: Solver) -> None:
    assert torch.equal(run(FedProx(0.0, base), schedule).params, run(base, schedule).params)


@pytest.mark.parametrize("schedule", BOTH)
def test_fedprox(schedule: Schedule) -> None:
    t, mu, rho = Textbook(schedule), 0.7, 0.5
    v = [torch.zeros(D, dtype=torch.float64) for _ in range(M)]
    for k in range(1, STEPS + 1):
        for i in range(M):
            v[i] = rho * v[i] + t.gradient(i, k) + mu * (t.x[i] - t.r)
            t.x[i] = t.x[i] - lr(k) * v[i]
        for part in schedule(k):
            j = t.parts[part]
            t.r[j] = t.mean(j)
            for i in range(M):
                t.x[i][j] = t.r[j]
    same(run(FedProx(mu, SGD(momentum=rho)), schedule), torch.stack(t.x))


# SCAFFOLD and VRL-SGD


@pytest.mark.parametrize("schedule", BOTH)
def test_vrl_sgd(schedule: Schedule) -> None:
    t = Textbook(schedule)
    delta = [torch.zeros(D, dtype=torch.float64) for _ in range(M)]
    for k in range(1, STEPS + 1):
        for i in range(M):
            t.x[i] = t.x[i] - lr(k) * (t.gradient(i, k) - delta[i])
            t.h[i] += lr(k)
        for part in schedule(k):
            j, u = t.parts[part], t.mean(t.parts[part])
            for i in range(M):
                delta[i][j] += (u - t.x[i][j]) / t.h[i][part]
                t.x[i][j] = u
                t.h[i][part] = 0
    workers = run(VRLSGD(), schedule)
    same(workers, torch.stack(t.x))
    same(workers.memory["deviation"], torch.stack(delta))


@pytest.mark.parametrize("schedule", BOTH)
def test_deviations_add_up_to_nothing(schedule: Schedule) -> None:
    def check(workers: Workers) -> None:
        assert (WEIGHTS @ workers.memory["deviation"]).abs().max() < 1e-12

    run(VRLSGD(), schedule, check)
    run(VRLSGD(SGD(momentum=0.9)), schedule, check)


@pytest.mark.parametrize("schedule", BOTH)
@pytest.mark.parametrize("base", [SGD(), SGD(momentum=0.9), SGD(0.5, nesterov=True)])
def test_scaffold_is_vrl_sgd(schedule: Schedule, base: SGD) -> None:
    """If all workers take the same steps, and all take part."""
    steps: dict[str, list[Tensor]] = {"scaffold": [], "vrl_sgd": []}
    for name, kept in steps.items():
        run(SOLVERS[name](base=base), schedule, lambda w, k=kept: k.append(w.params.clone()))
    for one, other in zip(*steps.values(), strict=True):
        same(one, other, 1e-10)


@pytest.mark.parametrize("schedule", BOTH)
@pytest.mark.parametrize(("active", "every"), [(2, 4), (4, 0), (3, 6), (6, 4)])
def test_scaffold_with_clients_that_come_and_go(
    schedule: Schedule, active: int, every: int
) -> None:
    """Controls belong to clients, models to slots."""
    n = 6
    weights = torch.full((n,), 1 / n, dtype=torch.float64)
    who = Participation(n, active, every)
    t = Textbook(schedule, n, weights)
    c_i = [torch.zeros(D, dtype=torch.float64) for _ in range(n)]
    c = torch.zeros(D, dtype=torch.float64)
    x = [rows(1, D, 0)[0].clone() for _ in range(active)]
    h = torch.zeros(active, schedule.parts, dtype=torch.float64)
    for k in range(1, STEPS + 1):
        clients = who(k).tolist()
        inputs, targets, _ = t.batches(k)
        for s, i in enumerate(clients):
            g = inputs[i, 0] * (x[s] - targets[i, 0])
            x[s] = x[s] - lr(k) * (g - c_i[i] + c)
            h[s] += lr(k)
        for part in schedule(k):
            j = t.parts[part]
            change = []
            for s, i in enumerate(clients):
                new = c_i[i][j] - c[j] + (t.r[j] - x[s][j]) / h[s, part]
                change.append(new - c_i[i][j])
                c_i[i][j] = new
            c[j] += active / n * sum(change) / active
            t.r[j] = sum(each[j] for each in x) / active
            for s in range(active):
                x[s][j] = t.r[j]
            h[:, part] = 0
    workers = run(SCAFFOLD(), schedule, weights=weights, participation=who)
    same(workers, torch.stack(x))
    same(workers.memory["common"][0], c)
    if who.moves:
        last = torch.tensor(who(STEPS))
        workers.bank["memory.control"].put_(last, workers.memory["control"])
        same(workers.bank["memory.control"].whole(), torch.stack(c_i))


def warm_up_and_decay(step: int) -> float:
    return 0.1 * min(step / 5, 1) * (0.1 if step > 8 else 1)


class Linear:
    """Losses whose gradients are the same everywhere and always, but differ between workers."""

    def __call__(self, params: Tensor, buffers: Tensor, batch: Batch):
        from partavg.core.loop import Gradients

        yield Gradients(
            slice(0, len(params)), torch.zeros(len(params)).double(),
            [(slice(0, D), rows(len(params), D, 7))],
        )  # fmt: skip


@pytest.mark.parametrize("name", ["scaffold", "vrl_sgd"])
@pytest.mark.parametrize("schedule", BOTH)
@pytest.mark.parametrize(
    "base",
    [
        SGD(),
        SGD(0.9),
        SGD(0.9, nesterov=True),
        SGD(0.9, momentum_at_averaging="reset"),
        SGD(0.9, momentum_at_averaging="averaged"),
    ],
)
@pytest.mark.parametrize("rate", [lambda k: 0.1, lr, warm_up_and_decay])
def test_on_linear_losses_workers_agree_from_the_second_cycle_on(
    name: str, schedule: Schedule, base: SGD, rate: Callable[[int], float]
) -> None:
    solver = SOLVERS[name](base=base)
    workers = start(solver, schedule.parts, rows(1, D, 0).repeat(M, 1))
    for record in train(
        workers, Linear(), lambda k: Batch(torch.zeros(M, 1), torch.zeros(M, 1), torch.arange(M)),
        plan=made(schedule), solver=solver, lr=rate, until=STEPS,
    ):  # fmt: skip
        if record.step > schedule.interval:
            assert discrepancy(list(workers.params.numpy())) < 1e-26, record.step


@pytest.mark.parametrize("schedule", BOTH)
@pytest.mark.parametrize(("rho", "nesterov"), [(0.5, False), (0.9, False), (0.9, True)])
def test_scaffold_with_momentum_counts_each_rate_as_far_as_it_carries(
    schedule: Schedule, rho: float, nesterov: bool
) -> None:
    """h_i = Σ η_k w_k, w_k being what momentum makes of a gradient of 1, at rates that change."""
    t = Textbook(schedule)
    v, c_i = ([torch.zeros(D, dtype=torch.float64) for _ in range(M)] for _ in range(2))
    c, w = torch.zeros(D, dtype=torch.float64), 0.0
    for k in range(1, STEPS + 1):
        eta, w = warm_up_and_decay(k), rho * w + 1
        weight = 1 + rho * w if nesterov else w
        for i in range(M):
            g = t.gradient(i, k)
            v[i] = rho * v[i] + g
            step = g + rho * v[i] if nesterov else v[i]
            t.x[i] = t.x[i] - eta * (step + weight * (c - c_i[i]))
            t.h[i] += eta * weight
        for part in schedule(k):
            j, change = t.parts[part], []
            for i in range(M):
                change.append((t.r[j] - t.x[i][j]) / t.h[i][part] - c[j])
                c_i[i][j] += change[i]
                t.h[i][part] = 0
            c[j] += sum(p * each for p, each in zip(t.p, change, strict=True))
            t.r[j] = t.mean(j)
            for i in range(M):
                t.x[i][j] = t.r[j]
    solver = SCAFFOLD(SGD(rho, nesterov=nesterov))
    workers = run(solver, schedule, lr=warm_up_and_decay)
    same(workers, torch.stack(t.x), 1e-10)
    same(workers.memory["control"], torch.stack(c_i), 1e-9)


# FedNova


@pytest.mark.parametrize("schedule", BOTH)
@pytest.mark.parametrize("base", [SGD(), SGD(0.9), SGD(0.9, momentum_at_averaging="averaged")])
def test_fednova_with_equal_steps_is_plain_averaging(schedule: Schedule, base: SGD) -> None:
    same(run(FedNova(base), schedule), run(base, schedule), 1e-10)


@pytest.mark.parametrize("schedule", BOTH)
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_fednova_with_workers_of_different_speed(schedule: Schedule, rho: float) -> None:
    pace = Fixed(schedule.interval, (1, schedule.interval, 2, 3), M)
    t = Textbook(schedule)
    v = [torch.zeros(D, dtype=torch.float64) for _ in range(M)]
    w = [0.0] * M
    for k in range(1, STEPS + 1):
        eta = warm_up_and_decay(k)
        for i in range(M):
            if pace(k)[i]:
                v[i] = rho * v[i] + t.gradient(i, k)
                w[i] = rho * w[i] + 1
                t.x[i] = t.x[i] - eta * v[i]
                t.h[i] += eta * w[i]
        for part in schedule(k):
            j = t.parts[part]
            a = [float(h[part]) for h in t.h]
            moved = [i for i in range(M) if a[i] > 0]
            if moved:
                total = sum(t.p[i] for i in moved)
                direction = sum(t.p[i] * (t.r[j] - t.x[i][j]) / a[i] for i in moved)
                t.r[j] = t.r[j] - sum(t.p[i] * a[i] for i in moved) / total * direction
            for i in range(M):
                t.x[i][j] = t.r[j]
                t.h[i][part] = 0
    workers = run(FedNova(SGD(rho)), schedule, lr=warm_up_and_decay, pace=pace)
    same(workers, torch.stack(t.x), 1e-10)


def test_fednova_sends_two_numbers_more_than_the_parameters_however_many_spans() -> None:
    schedule = Schedule.periodic(2)
    spans = tuple(Span(at, at + 1) for at in range(D))
    plain = made(schedule)
    cut = Plan(schedule, Partition(D, (spans,)), ((),), plain.weights)
    ends = []
    for the_plan in (plain, cut):
        workers = start(FedNova(), 1, rows(1, D, 0).repeat(M, 1))
        for record in train(
            workers, Quadratic(), quadratic_batches(M, D), plan=the_plan, solver=FedNova(), lr=lr,
            until=6,
        ):  # fmt: skip
            assert record.bytes == record.messages * (D + 2) * 8
        ends.append(workers.params)
    same(*ends)


# Delay


@pytest.mark.parametrize("schedule", BOTH)
@pytest.mark.parametrize("delay", [0, 1, 3])
def test_delay(schedule: Schedule, delay: int) -> None:
    t = Textbook(schedule)
    sent: dict[int, tuple[int, Tensor, list[Tensor]]] = {}
    for k in range(1, STEPS + 1):
        for i in range(M):
            t.x[i] = t.x[i] - lr(k) * t.gradient(i, k)
        for part in schedule(k):
            j = t.parts[part]
            sent[part] = k + delay, t.mean(j), [x[j].clone() for x in t.x]
        for part, (arrives, u, then) in list(sent.items()):
            if arrives == k:
                j = t.parts[part]
                for i in range(M):
                    t.x[i][j] = u + (t.x[i][j] - then[i])
                del sent[part]
    same(run(SGD(), schedule, delay=delay), torch.stack(t.x))


@pytest.mark.parametrize("delay", [1, 3])
def test_delay_does_not_move_the_mean(delay: int) -> None:
    """On linear losses u does not depend on when averages arrive."""
    ends = []
    for wait in (0, delay):
        workers = start(SGD(), 4, rows(1, D, 0).repeat(M, 1))
        for _ in train(
            workers, Linear(),
            lambda k: Batch(torch.zeros(M, 1), torch.zeros(M, 1), torch.arange(M)),
            plan=made(Schedule.partial(4), delay=wait), solver=SGD(), lr=lr, until=STEPS,
        ):  # fmt: skip
            pass
        ends.append(WEIGHTS @ workers.params)
    same(*ends)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FedProx(-1.0), "mu -1.0 pushes workers apart"),
        (lambda: Outer(SCAFFOLD()), "SCAFFOLD cannot be an outer optimizer"),
        (lambda: Outer(lr=0.0), "an outer lr of 0.0 stops training"),
        (lambda: Outer(keep=1.0), r"keep 1.0 is outside \[0, 1\)"),
        (lambda: Adam(beta1=1.0), r"beta1 1.0 is outside \[0, 1\)"),
        (lambda: Adam(eps=0.0), "eps 0.0 is not above 0"),
        (lambda: Adam(weight_decay=-1.0), "weight_decay -1.0 is negative"),
        (lambda: made(Schedule(4), delay=4), "delay 4 is not below the interval 4"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
