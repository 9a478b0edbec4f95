"""Solvers say what they can do; what a trial contradicts is refused."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tests.outside import FedDyn
from torch import Tensor, nn
from torch.nn import functional as F

import partavg
from partavg import SGD, Abilities, FedProx, Outer, Participation, abilities
from partavg.core.pace import Fixed
from partavg.core.trial import check_abilities, message_length, sends_parameters, shared_names
from partavg.solvers import SOLVERS


@dataclass(frozen=True)
class Odd(SGD):
    """SGD that says something else of itself."""

    said: Any = None

    @property
    def abilities(self) -> Any:
        return self.said


class Bare:
    """A solver of four functions, and no more."""

    init, step_, encode, decode_ = SGD().init, SGD().step_, SGD().encode, SGD().decode_


class HalfWay(Odd):
    def decode_(self, rows: Tensor, total: Tensor, state: Any, sync: Any) -> None:
        rows.lerp_(total.expand_as(rows), 0.5)


class Doubled(Odd):
    def encode(self, rows: Tensor, state: Any, sync: Any) -> Tensor:
        return 2 * rows


def simulated(solver: Any, **settings: Any) -> partavg.Simulation:
    x, y = torch.randn(8, 2), torch.zeros(8, dtype=torch.long)
    return partavg.Simulation(
        nn.Linear(2, 2), F.cross_entropy, (x, y), partavg.iid(y, 2, 0),
        schedule=partavg.Schedule.partial(2), lr=0.1, solver=solver, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("name", SOLVERS)
def test_what_our_solvers_say_holds(name: str) -> None:
    check_abilities(SOLVERS[name]())


@pytest.mark.parametrize(
    ("solver", "problem"),
    [
        (HalfWay(said=Abilities()), "HalfWay leaves workers apart .* keeps_apart=True"),
        (HalfWay(said=Abilities(plain=True, keeps_apart=True)), "messages are plain, but"),
        (Doubled(said=Abilities(plain=True)), "messages are plain, but it sends more"),
        (Odd(said=Abilities(per_client=("control",))), "'control' belongs to clients"),
        (Odd(said=Abilities(outer_step=True)), "an outer step, but no base"),
        (Odd(said={"plain": True}), "must be a partavg.Abilities"),
        (FedProx(base=Outer()), "FedProx has one with an outer step below it, Outer"),
        (FedProx(base=FedProx(base=FedDyn())), "an outer step below it"),
        (Outer(base=Outer()), "the only one"),
    ],
)
def test_what_does_not_hold_is_refused_wherever_a_solver_enters(solver: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_abilities(solver)
    with pytest.raises(ValueError, match=problem):
        simulated(solver)


RESETTING = SGD(0.9, momentum_at_averaging="reset")


@pytest.mark.parametrize(
    ("solver", "settings", "problem"),
    [
        (partavg.VRLSGD(), {"pace": Fixed(2, (1, 2), 2)}, "VRLSGD needs workers that take the"),
        (FedDyn(), {"participation": Participation(2, 1, 2, "none")}, "FedDyn compares models"),
        (
            SGD(),
            {"participation": Participation(2, 1, 2, "none"), "adapt": partavg.PostLocal(2)},
            "cuts models anew",
        ),
        (partavg.SCAFFOLD(RESETTING), {"delay": 1}, "SCAFFOLD cannot take averages that"),
    ],
)
def test_a_simulation_refuses_what_a_solver_cannot_do_with(
    solver: Any, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        simulated(solver, **settings)


def boom(*_: Any) -> Any:
    raise RuntimeError("boom")


def counted(self: Any, params: Tensor, layout: partavg.Layout) -> dict[str, Tensor]:
    return {"n": torch.zeros_like(params)}


def rebound(self: Any, params: Tensor, grads: Tensor, state: Any, now: partavg.Step) -> None:
    state["n"] = state["n"] + 1


@pytest.mark.parametrize(
    ("functions", "problem"),
    [
        ({"init": boom}, "Mine fails in `init`, tried on .*: RuntimeError: boom"),
        ({"step_": boom}, "fails in `step_`"),
        ({"encode": boom}, "fails in `encode`"),
        ({"decode_": boom}, "fails in `decode_`"),
        ({"init": lambda s, p, layout: None}, "no dict of tensors, but NoneType"),
        ({"init": lambda s, p, layout: {"n": p.new_zeros(len(p), 1)}}, "'n' is not of the shape"),
        ({"init": lambda s, p, layout: {"r": p[:1]}}, "'r' is the parameters themselves: clone"),
        ({"init": lambda s, p, layout: {"r": p[layout.names.index("a")]}}, "one tensor, 'trial'"),
        ({"encode": lambda s, r, m, sync: r[0]}, "gives no tensor with a row per worker"),
        ({"encode": lambda s, r, m, sync: None}, "gives no tensor with a row"),
        ({"encode": lambda s, r, m, sync: r * sync.steps}, "gives torch.float64: keep the type"),
        ({"init": counted, "step_": rebound}, "puts other tensors into its memory"),
        ({"abilities": property(lambda s: s.bsae)}, "cannot say its abilities: AttributeError"),
        ({"abilities": property(lambda s: Abilities(plian=True))}, "abilities: TypeError"),
    ],
)
def test_mistakes_in_its_functions_are_said_before_training(functions: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_abilities(type("Mine", (Bare,), functions)())


def test_what_is_no_solver_is_said() -> None:
    with pytest.raises(ValueError, match=r"SGD is a class: make one, SGD\(\)"):
        check_abilities(SGD)
    with pytest.raises(ValueError, match="'sgd' has not the functions init"):
        check_abilities("sgd")


class Fisher(Bare):
    """Σ f_i x_i / Σ f_i with f the squares of gradients: 0 / 0 before the first step."""

    def init(self, params: Tensor, layout: partavg.Layout) -> dict[str, Tensor]:
        return {"f": torch.zeros_like(params), "n": torch.zeros_like(params, dtype=torch.int64)}

    def step_(self, params: Tensor, grads: Tensor, state: Any, now: partavg.Step) -> None:
        state["f"].addcmul_(grads, grads)
        state["n"].add_(1)
        params.sub_(grads, alpha=now.lr)

    def encode(self, rows: Tensor, state: Any, sync: Any) -> Tensor:
        return torch.cat([state["f"] * rows, state["f"]], 1)

    def decode_(self, rows: Tensor, total: Tensor, state: Any, sync: Any) -> None:
        weighted, weight = total.chunk(2)
        rows.copy_(weighted / weight)


def test_what_makes_sense_only_after_a_step_is_no_mistake() -> None:
    check_abilities(Fisher())
    assert message_length(Fisher()) == (2, 0, 0)


def test_a_wrapper_takes_over_what_its_base_says() -> None:
    said = abilities(FedProx(base=partavg.SCAFFOLD(SGD(0.9))))
    assert said.per_client == ("control",)
    assert said.corrects_gradients
    assert said.corrects_parameters
    assert said.needs_last_average
    assert not said.plain
    assert abilities(Outer(base=FedProx())).outer_step


def test_a_solver_that_says_nothing_has_the_defaults() -> None:
    assert abilities(Bare()) == Abilities()
    check_abilities(Bare())


def test_old_attributes_count_for_one_version() -> None:
    class Old(Bare):
        per_client, plain = ("own",), False

    with pytest.warns(DeprecationWarning, match="Old has attributes plain, per_client"):
        assert abilities(Old()) == Abilities(per_client=("own",))
    with pytest.warns(DeprecationWarning, match="active_fraction"):
        assert partavg.Sync(*[torch.ones(1, 1)] * 3, 0.5).share == 0.5


def test_what_is_found_by_a_trial() -> None:
    assert shared_names(partavg.SCAFFOLD()) == {"common", "anchor"}
    assert shared_names(SGD(0.9, weight_decay=0.1, decay="kernels")) == {"decays"}
    assert abilities(SGD(0.9, weight_decay=0.1, decay="kernels")).constant == ("decays",)
    assert sends_parameters(FedDyn())
    assert sends_parameters(SGD(0.9, momentum_at_averaging="averaged"))
    assert not sends_parameters(partavg.FedNova())
    assert message_length(partavg.SCAFFOLD()) == (2, 0, 0)
    assert message_length(partavg.FedNova()) == (1, 0, 2)


@dataclass(frozen=True)
class Pulled:
    """Changes gradients, or parameters, and says so or not."""

    base: partavg.Solver = field(default_factory=SGD)
    what: str = "gradients"
    said: Abilities | None = None

    @property
    def abilities(self) -> Abilities:
        return self.said or replace(abilities(self.base), plain=False)

    def init(self, params: Tensor, layout: partavg.Layout) -> dict[str, Tensor]:
        return {"zeros": torch.zeros_like(params), **self.base.init(params, layout)}

    def step_(self, params: Tensor, grads: Tensor, state: Any, now: partavg.Step) -> None:
        (grads if self.what == "gradients" else params).add_(state["zeros"])
        self.base.step_(params, grads, state, now)

    def encode(self, rows: Tensor, state: Any, sync: Any) -> Tensor:
        return self.base.encode(rows, state, sync)

    def decode_(self, rows: Tensor, total: Tensor, state: Any, sync: Any) -> None:
        self.base.decode_(rows, total, state, sync)


class Boxed(Bare):
    """No dataclass."""

    base = SGD()


@pytest.mark.filterwarnings("ignore:torch.distributed is not set up")
@pytest.mark.parametrize(
    ("solver", "problem"),
    [
        (Pulled(), "Pulled changes gradients in `step_`, but does not say so"),
        (Pulled(what="parameters"), "Pulled changes parameters in `step_`, but does not say so"),
        (FedProx(base=partavg.SCAFFOLD()), "corrects gradients, and one below it parameters"),
        (Boxed(), "Boxed is no dataclass"),
        (SGD(), "SGD takes local steps, and here your optimizer does"),
        (
            Pulled(said=Abilities(corrects_gradients=True, allows_delay=False)),
            "Pulled cannot take averages that arrive late",
        ),
        (FedProx, r"FedProx is a class: make one, FedProx\(\)"),
        ("fedprox", "'fedprox' has not the functions init"),
    ],
)
def test_attach_refuses_what_would_be_lost(solver: Any, problem: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match=problem):
        partavg.attach(model, optimizer, interval=2, delay=1, solver=solver)


@pytest.mark.filterwarnings("ignore:torch.distributed is not set up")
def test_attach_takes_a_solver_that_says_what_it_does() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = Abilities(corrects_gradients=True)
    with partavg.attach(model, optimizer, interval=2, solver=Pulled(said=said)):
        pass
