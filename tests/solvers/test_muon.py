"""Muon as torch has it, worker by worker and matrix by matrix."""

import copy

import pytest
import torch
from tests.problems import LAYOUT
from tests.solvers.setting import BOTH, STEPS, D, M, Textbook, lr, run, same
from tests.strategies import rows
from torch import nn
from torch.nn import functional as F

from partavg.backends.distributed.on_optimizer import _check_corrections
from partavg.backends.simulate import Simulation
from partavg.core.layout import Layout
from partavg.core.schedule import Schedule
from partavg.core.solver import Step
from partavg.solvers.fedprox import FedProx
from partavg.solvers.muloco import muloco
from partavg.solvers.muon import Muon
from partavg.solvers.outer import Outer
from partavg.solvers.sgd import SGD

THREE = ("three.*",)
BY_ADAMW = {"three.weight", "one.bias", "two.bias", "three.bias"}


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's Muon keep its matrices in float64."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)


class Theirs:
    """A worker with torch's optimizers."""

    def __init__(self, x: torch.Tensor, solver: Muon) -> None:
        self.tensors = {k: nn.Parameter(v.clone()) for k, v in LAYOUT.views(x).items()}
        hidden = [p for name, p in self.tensors.items() if name not in BY_ADAMW]
        rest = [p for name, p in self.tensors.items() if name in BY_ADAMW]
        self.optimizers = (
            torch.optim.Muon(
                hidden, momentum=solver.momentum, nesterov=solver.nesterov,
                weight_decay=solver.weight_decay, adjust_lr_fn=solver.adjust_lr,
            ),
            torch.optim.AdamW(
                rest, betas=(solver.beta1, solver.beta2), eps=solver.adamw_eps,
                weight_decay=solver.weight_decay,
            ),
        )  # fmt: skip
        self.ratios = 1.0, solver.adamw_rate

    @property
    def x(self) -> torch.Tensor:
        return torch.cat([tensor.detach().flatten() for tensor in self.tensors.values()])

    def take(self, x: torch.Tensor) -> None:
        for name, view in LAYOUT.views(x).items():
            self.tensors[name].data.copy_(view)

    def step(self, grad: torch.Tensor, rate: float) -> None:
        for name, view in LAYOUT.views(grad).items():
            self.tensors[name].grad = view.clone()
        for optimizer, ratio in zip(self.optimizers, self.ratios, strict=True):
            optimizer.param_groups[0]["lr"] = rate * ratio
            optimizer.step()


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("schedule", BOTH)
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize(
    "muon",
    [
        Muon(adamw=THREE),
        Muon(adamw=THREE, nesterov=False, adjust_lr="original", weight_decay=0.0, adamw_rate=0.3),
    ],
)
def test_muon_is_torchs_on_every_worker(schedule: Schedule, muon: Muon, outer: bool) -> None:
    """Muon for hidden matrices, AdamW for the rest; with an outer step it is MuLoCo."""
    t = Textbook(schedule)
    workers = [Theirs(x, muon) for x in t.x]
    r = [nn.Parameter(t.r[j].clone()) for j in t.parts]
    outers = [torch.optim.SGD([p], lr=0.7, momentum=0.9, nesterov=True) for p in r]
    for k in range(1, STEPS + 1):
        for i in range(M):
            workers[i].step(t.gradient(i, k), lr(k))
            t.x[i] = workers[i].x
        for part in schedule(k):
            j, mean = t.parts[part], t.mean(t.parts[part])
            if outer:
                r[part].grad = r[part].detach() - mean
                outers[part].step()
                mean = r[part].detach()
            for i in range(M):
                t.x[i][j] = mean
                workers[i].take(t.x[i])
    nesterov = SGD(0.9, nesterov=True)
    same(run(Outer(nesterov, 0.7, base=muon) if outer else muon, schedule), torch.stack(t.x), 1e-9)


def test_in_bfloat16_it_is_torchs_up_to_rounding() -> None:
    layout = Layout(("hidden.weight",), ((24, 16),))
    x, grad = rows(3, layout.size, 0).float(), rows(3, layout.size, 1).float()
    theirs = [nn.Parameter(row.view(24, 16).clone()) for row in x]
    for parameter, row in zip(theirs, grad, strict=True):
        parameter.grad = row.view(24, 16).clone()
        torch.optim.Muon([parameter], lr=0.1, adjust_lr_fn="match_rms_adamw").step()
    expected = torch.stack([parameter.detach().flatten() for parameter in theirs])
    moved = expected - x
    for bfloat16 in (True, False):
        solver, mine = Muon(bfloat16=bfloat16), x.clone()
        now = Step(0.1, torch.ones(3, 1, dtype=torch.float64), layout)
        solver.step_(mine, grad.clone(), solver.init(x, layout), now)
        assert (mine - expected).norm() < 0.02 * moved.norm()


def test_singular_values_become_about_1() -> None:
    matrices = torch.randn(2, 3, 20, 12, generator=torch.Generator().manual_seed(0)).double()
    values = torch.linalg.svdvals(Muon()._orthogonal(matrices))
    assert 0.6 < values.min() < values.max() < 1.25
    assert Muon()._orthogonal(torch.zeros(1, 1, 3, 3)).eq(0).all()


@pytest.mark.parametrize("engine", ["looped", "vmapped"])
def test_local_columns_step_by_muon_below_an_outer_step(engine: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=generator).double()
    y = (x[:, 0] > 0).long()

    def ended(**how: object) -> Simulation:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2)).double()
        simulation = Simulation(
            model, F.cross_entropy, (x, y), [range(30), range(30, 60)], lr=0.02, batch=5,
            schedule=Schedule.partial(2), engine=engine, **how,
        )  # fmt: skip
        for _ in simulation.train(5):
            pass
        return simulation

    muon = Muon(adamw=("3.*",))
    plain = ended(solver=muon, local=("2.*",))
    outer = ended(solver=Outer(SGD(), base=muon), local=("2.*",))
    torch.testing.assert_close(plain.workers.params, outer.workers.params, rtol=1e-9, atol=1e-11)
    saved = copy.deepcopy(plain.state())
    for _ in plain.train(9):
        pass
    again = ended(solver=muon, local=("2.*",))
    again.load(saved)
    for _ in again.train(9):
        pass
    assert torch.equal(plain.workers.params, again.workers.params)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be an outer optimizer, since parts need not"):
        Outer(Muon())
    zeros = torch.zeros(1, D)
    with pytest.raises(ValueError, match="Muon must see whole tensors: give their layout"):
        Muon().step_(zeros, zeros, {}, Step(0.1, torch.ones(1, 1)))
    with pytest.raises(ValueError, match="must see whole tensors, and ranks may hold shards"):
        _check_corrections(FedProx(base=Muon()))
    for wrong, said in {
        "momentum": "momentum 1.0 is outside", "eps": "eps 0.0 is not above 0",
        "adamw_rate": "adamw_rate 0.0 is not above 0",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=said):
            Muon(**{wrong: 1.0 if wrong == "momentum" else 0.0})
    with pytest.raises(ValueError, match="adamw 'head' are no patterns of names"):
        Muon(adamw="head")
    with pytest.raises(ValueError, match="adjust_lr"):
        Muon(adjust_lr="none")
    with pytest.raises(ValueError, match="beta1"):
        Muon(beta1=2.0)


def test_muloco_is_an_outer_step_above_muon() -> None:
    assert muloco() == Outer(SGD(0.9, nesterov=True), 0.7, base=Muon())
    assert hash(muloco(adamw=["head.*"])) == hash(muloco(adamw=("head.*",)))
