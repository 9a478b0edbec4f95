"""Adam, and optimizers of averages: each as torch has it."""

import pytest
import torch
from tests.problems import LAYOUT
from tests.solvers.setting import BOTH, STEPS, D, M, Textbook, lr, run, same
from tests.strategies import rows

from partavg.core.schedule import Schedule
from partavg.core.solver import Solver, Step
from partavg.solvers.adam import Adam, adam, adamw
from partavg.solvers.fednova import FedNova
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import Outer, diloco, fedadam, fedavgm
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD


@pytest.mark.parametrize("schedule", BOTH)
@pytest.mark.parametrize("base", [SGD(0.9), FedProx(0.3), SCAFFOLD(), FedNova(), adam()])
def test_an_outer_step_of_1_is_plain_averaging(schedule: Schedule, base: Solver) -> None:
    same(run(Outer(SGD(), base=base), schedule), run(base, schedule))


@pytest.mark.parametrize("schedule", BOTH)
@pytest.mark.parametrize("mix", [None, 0.0, 0.25])
@pytest.mark.parametrize("kind", ["fedavgm", "nesterov", "fedadam"])
def test_an_outer_optimizer_is_torchs_on_each_part(
    schedule: Schedule, mix: float | None, kind: str
) -> None:
    t, alpha = Textbook(schedule), mix or 0.0
    r = [torch.nn.Parameter(t.r[j].clone()) for j in t.parts]
    optimizers = {
        "fedavgm": lambda p: torch.optim.SGD([p], lr=0.8, momentum=0.9),
        "nesterov": lambda p: torch.optim.SGD([p], lr=0.8, momentum=0.9, nesterov=True),
        "fedadam": lambda p: torch.optim.Adam([p], lr=0.02, betas=(0.9, 0.99), eps=1e-3),
    }
    outer = [optimizers[kind](p) for p in r]
    for k in range(1, STEPS + 1):
        for i in range(M):
            t.x[i] = t.x[i] - lr(k) * t.gradient(i, k)
        for part in schedule(k):
            j = t.parts[part]
            r[part].grad = r[part].detach() - t.mean(j)
            outer[part].step()
            for i in range(M):
                t.x[i][j] = (1 - alpha) * r[part].detach() + alpha * t.x[i][j]
    ours = {
        "fedavgm": Outer(SGD(0.9), 0.8),
        "nesterov": Outer(SGD(0.9, nesterov=True), 0.8),
        "fedadam": Outer(Adam(0.9, 0.99, 1e-3), 0.02),
    }
    same(run(ours[kind], schedule, mix=mix), torch.stack(t.x))


def test_keep_is_the_old_name_of_a_mix() -> None:
    with pytest.deprecated_call(match="give mix = 0.25 to attach"):
        old = Outer(SGD(0.9), 0.8, keep=0.25)
    schedule = Schedule.partial(4)
    same(run(old, schedule), run(Outer(SGD(0.9), 0.8), schedule, mix=0.25))


@pytest.mark.parametrize("schedule", BOTH)
def test_fedadam_is_algorithm_2_of_its_paper(schedule: Schedule) -> None:
    """m ← β₁m + (1 − β₁)Δ, v ← β₂v + (1 − β₂)Δ², x ← x + η m / (√v + τ), and v₋₁ = τ²."""
    t, (beta1, beta2, tau, eta) = Textbook(schedule), (0.9, 0.99, 1e-3, 0.02)
    m = torch.zeros(D, dtype=torch.float64)
    v = torch.full((D,), tau**2, dtype=torch.float64)
    for k in range(1, STEPS + 1):
        for i in range(M):
            t.x[i] = t.x[i] - lr(k) * t.gradient(i, k)
        for part in schedule(k):
            j = t.parts[part]
            delta = t.mean(j) - t.r[j]
            m[j] = beta1 * m[j] + (1 - beta1) * delta
            v[j] = beta2 * v[j] + (1 - beta2) * delta**2
            t.r[j] = t.r[j] + eta * m[j] / (v[j].sqrt() + tau)
            for i in range(M):
                t.x[i][j] = t.r[j]
    same(run(fedadam(lr=eta), schedule), torch.stack(t.x))


def test_the_named_outer_optimizers() -> None:
    assert fedavgm() == Outer(SGD(0.9), 1.0)
    assert fedavgm(nesterov=True).optimizer == SGD(0.9, nesterov=True)
    assert fedadam().optimizer == Adam(0.9, 0.99, 1e-3, bias_correction=False)
    assert diloco() == Outer(SGD(0.9, nesterov=True), 0.7, base=adamw(weight_decay=0.1))


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_is_torchs(decay: float, decoupled: bool) -> None:
    solver = (adamw if decoupled else adam)(weight_decay=decay)
    params = rows(2, D, 0)
    theirs = torch.nn.Parameter(params.clone())
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([theirs], lr=0.1, weight_decay=decay)
    state = solver.init(params, LAYOUT)
    for step in range(1, 7):
        grads = rows(2, D, step)
        theirs.grad = grads.clone()
        optimizer.step()
        solver.step_(params, grads, state, Step(0.1, torch.full((2, 1), float(step)).double()))
        same(params, theirs.detach(), 1e-12)
