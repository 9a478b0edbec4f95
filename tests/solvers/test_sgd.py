import pytest
import torch
from tests.problems import LAYOUT, Quadratic, plan, quadratic_batches, start
from tests.strategies import rows

from partavg.core.loop import train
from partavg.core.schedule import Schedule
from partavg.core.solver import Step, Sync
from partavg.solvers.sgd import SGD

D = LAYOUT.size


def now(lr: float, taken: int = 1) -> Step:
    return Step(lr, torch.tensor([[float(taken)]], dtype=torch.float64))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"weight_decay": 0.1},
        {"momentum": 0.5, "weight_decay": 0.1},
        {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1},
    ],
)
def test_steps_are_those_of_torch(options: dict) -> None:
    solver = SGD(**options)
    params = rows(1, D, 0)
    theirs = torch.nn.Parameter(params.clone())
    state = solver.init(params, LAYOUT)
    optimizer = torch.optim.SGD([theirs], lr=0.1, **options)
    for step in range(5):
        grads = rows(1, D, step + 1)
        theirs.grad = grads.clone()
        optimizer.step()
        solver.step_(params, grads, state, now(0.1))
        torch.testing.assert_close(params, theirs.detach(), rtol=0, atol=1e-12)


def test_decay_of_kernels_spares_what_has_one_axis() -> None:
    solver = SGD(weight_decay=0.5, decay="kernels")
    before = rows(3, D, 0)
    params = before.clone()
    solver.step_(params, torch.zeros_like(params), solver.init(params, LAYOUT), now(0.1))
    for name, view in LAYOUT.views(params).items():
        factor = 0.95 if name.endswith("weight") else 1.0
        torch.testing.assert_close(view, factor * LAYOUT.views(before)[name])


def test_momentum_stays_local_or_is_averaged_or_starts_again() -> None:
    clock = torch.ones(2, 1, dtype=torch.float64)
    sync = Sync(clock, clock, clock)
    expected = {"local": [[1.0], [3.0]], "averaged": [[2.0], [2.0]], "reset": [[0.0], [0.0]]}
    for policy, momentum in expected.items():
        solver = SGD(momentum=0.9, momentum_at_averaging=policy)
        params = torch.tensor([[10.0], [20.0]], dtype=torch.float64)
        state = {"momentum": torch.tensor([[1.0], [3.0]], dtype=torch.float64)}
        message = solver.encode(params, state, sync)
        assert message.shape[1] == (2 if policy == "averaged" else 1)
        solver.decode_(params, message.mean(0), state, sync)
        assert params.tolist() == [[15.0], [15.0]]
        assert state["momentum"].tolist() == momentum, policy


def test_averaged_momentum_makes_workers_agree_for_good() -> None:
    """At interval 1, equal parameters and momenta stay equal; traffic doubles."""
    solver = SGD(momentum=0.9, momentum_at_averaging="averaged")
    workers = start(solver, 1, rows(1, D, 0).repeat(4, 1))
    for record in train(
        workers,
        Quadratic(),
        quadratic_batches(4, D),
        plan=plan(Schedule.synchronous(), 4),
        solver=solver,
        lr=lambda k: 0.1,
        until=5,
    ):
        momentum = workers.memory["momentum"]
        torch.testing.assert_close(momentum, momentum[:1].expand(4, -1))
        assert record.bytes == record.step * 2 * D * 8


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"momentum": 1.0}, r"momentum 1.0 is outside \[0, 1\)"),
        ({"momentum": -0.1}, "momentum -0.1 is outside"),
        ({"nesterov": True}, "nesterov needs momentum"),
        ({"weight_decay": -1.0}, "weight_decay -1.0 is negative"),
        ({"decay": "kernel"}, "decay 'kernel' is not known: use all or kernels"),
        ({"momentum_at_averaging": "x"}, "use local, averaged, reset"),
    ],
)
def test_bad_options_are_refused(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SGD(**options)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("policy", ["local", "reset"])
def test_the_weights_of_steps_are_how_far_a_gradient_of_1_goes(
    momentum: float, nesterov: bool, policy: str
) -> None:
    """At rates that warm up and decay."""
    if nesterov and not momentum:
        return
    solver = SGD(momentum=momentum, nesterov=nesterov, momentum_at_averaging=policy)
    params = torch.zeros(1, D, dtype=torch.float64)
    state = solver.init(params, LAYOUT)
    workers = start(solver, 1, params)
    for step, lr in enumerate((0.02, 0.05, 0.1, 0.1, 0.1, 0.08, 0.05, 0.02, 0.01, 0.001), 1):
        solver.step_(params, torch.ones_like(params), state, now(lr, step))
        workers.taken += 1
        workers.count_(lr, weigh=solver.abilities.step_weight)
        torch.testing.assert_close(-params[:, :1], workers.lr_sum, rtol=1e-13, atol=1e-15)
        if step in (3, 7):  # an averaging: here with oneself
            solver.decode_(params, params[0].clone(), state, workers.sync(0))
            params.zero_()
            workers.steps[:] = workers.lr_sum[:] = 0
