"""A client that lies within what is plausible: what the mean makes of it, and robust aggregates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from tests.flower.faults import fault
from tests.flower.federation import BASE, assert_equal, federation, server, simulation
from tests.flower.test_faults import altered, damaged
from torch import Tensor

from partavg import build
from partavg.aggregates import Median
from partavg.attacks import Attack, Constant, LittleIsEnough, Scaled, SignFlip
from partavg.core.aggregate import About
from partavg.flower.messages import PART
from partavg.flower.run import FederatedRun
from partavg.flower.settings import Settings

LIAR = 2  # it answers last, and knows what the others said
ATTACKS: dict[str, Attack] = {
    "the number 3 everywhere": Constant(clients=(LIAR,), value=3.0),
    "the opposite of what it found": SignFlip(clients=(LIAR,)),
    "what it found, 30 times as far": Scaled(clients=(LIAR,), scale=30.0),
    "what hides among the others (little is enough)": LittleIsEnough(clients=(LIAR,), z=1.0),
}
DEFENCES: dict[str, dict[str, Any]] = {
    "mean": {},
    "median": {"aggregate.name": "median"},
    "trimmed": {"aggregate.name": "trimmed", "aggregate.share": 0.34},
    "norm_bound": {"aggregate.name": "norm_bound", "aggregate.times": 0.5},
    "geometric_median": {"aggregate.name": "geometric_median"},
}


def liar(
    run: FederatedRun, attack: Attack, said: dict[int, Tensor] | None = None
) -> Callable[[int, Message], Message]:
    """What comes of the clients' replies when one of them attacks; `said` is what they found."""
    said = {} if said is None else said

    def after(client: int, reply: Message) -> Message:
        if PART not in reply.content:
            return reply
        data = bytearray(reply.content[PART][PART].data)
        said[client] = torch.frombuffer(data, dtype=torch.float64)
        if client != LIAR:
            return reply
        messages = torch.stack([said[other] for other in range(LIAR + 1)])
        last = in_common(run)
        about = About(0, 1, 0, last, (slice(0, len(last)),))
        sent = attack.lie(messages, torch.tensor([LIAR]), about)[0]
        return damaged(reply, lambda _: sent)

    return after


def in_common(run: FederatedRun) -> Tensor:
    """The parameters that a message is about, as all last had them in common."""
    agreement, now = run.server._agreement, run.server.progress
    plan, spans = agreement.plan, agreement.param_spans
    if now.stage == "exchange":
        gap = plan.schedule.interval // plan.schedule.parts
        spans = plan.partition.parts[plan.schedule(now.step + gap)[0]]
    return torch.cat([run.server.mirror.params[0, a:b] for a, b in spans])


def attacked(folder: Path, attack: Attack, changes: dict[str, Any]) -> FederatedRun:
    """A federation with a liar in it, trained to its end."""
    grid = federation(folder, changes)
    run = server(grid)
    grid.after = liar(run, attack)
    for _ in run:
        pass
    return run


CASES = [(attack, defence, 4) for attack in ATTACKS for defence in DEFENCES]
CASES.remove(("the number 3 everywhere", "mean", 4))
"""With the mean a liar may still change a part that was just averaged, at the end."""
CASES += [(attack, "median", 1) for attack in ATTACKS]


@pytest.mark.parametrize(("attack", "defence", "parts"), CASES)
def test_it_is_what_the_simulator_makes_of_the_same_attack(
    tmp_path: Path, attack: str, defence: str, parts: int
) -> None:
    changes = {"averaging.parts": parts, "training.steps": 8, **DEFENCES[defence]}
    run = attacked(tmp_path, ATTACKS[attack], changes)
    aggregate = build.aggregate(chosen(changes).config)
    expected = simulation(changes, aggregate=aggregate, attack=ATTACKS[attack])
    assert_equal(run.model(), expected.consensus())


def chosen(changes: dict[str, Any]) -> Settings:
    return Settings.read({**BASE, **changes})


def far(said: dict[int, Tensor], last: Tensor, average: Tensor) -> str:
    """With the mean."""
    apart = sum(float((said[c][: len(last)] - last).norm()) for c in range(LIAR))
    assert float((average[: len(last)] - last).norm()) > apart
    return "the average moves farther than all others together went: the mean is no defence"


def between(said: dict[int, Tensor], last: Tensor, average: Tensor) -> str:
    """With the median, and where as much is trimmed as the liar weighs."""
    least, most = torch.minimum(said[0], said[1]), torch.maximum(said[0], said[1])
    assert bool(((average >= least - 1e-12) & (average <= most + 1e-12)).all())
    return "each number of the average lies between those that the others sent"


def no_farther(said: dict[int, Tensor], last: Tensor, average: Tensor) -> str:
    """With the norm bound."""
    most = max(float((said[c][: len(last)] - last).norm()) for c in range(LIAR))
    assert float((average[: len(last)] - last).norm()) <= most + 1e-12
    return "the average moves no farther than the farthest of the others went"


SEEN = {"mean": far, "median": between, "trimmed": between, "norm_bound": no_farther}
LIES = {
    "the opposite of what it found, 30 times as far": SignFlip(scale=30.0),
    "what it found, 30 times as far": Scaled(scale=30.0),
}


def seen(folder: Path, attack: Attack, defence: str, **changes: Any) -> str:
    """What averages are like with a liar; with the mean the first, before all is lost."""
    grid = federation(folder, {"training.steps": 4, **DEFENCES[defence], **changes})
    run, said = server(grid), dict[int, Tensor]()
    lie = liar(run, attack, said)
    common: list[Tensor] = []

    def after(client: int, reply: Message) -> Message:
        if client == LIAR and PART in reply.content:
            common.append(in_common(run))
        return lie(client, reply)

    grid.after, words = after, ""
    for row in run:
        if row["stage"] != "exchange" or (words and defence == "mean"):
            break
        assert row["clients"] == [0, 1, 2]
        words = SEEN[defence](said, common[-1], run.server.progress.sums)
    return words


@pytest.mark.parametrize("defence", SEEN)
@pytest.mark.parametrize("lie", LIES)
@fault("Lies", "a client sends {lie}, aggregate.name = {defence}", lie=LIES, defence=SEEN)
def test_lies_that_are_plausible(tmp_path: Path, lie: str, defence: str) -> str:
    return seen(tmp_path, LIES[lie], defence)


@pytest.mark.parametrize("defence", ["mean", "median"])
@fault(
    "Lies",
    "a client sends 1e30, flower.max_change = 0, aggregate.name = {defence}",
    defence=["mean", "median"],
)
def test_any_number_is_let_in(tmp_path: Path, defence: str) -> str:
    return seen(tmp_path, Constant(), defence, **{"flower.max_change": 0.0})


@fault("Lies", "a client sends what hides among the others (little is enough), median")
def test_lies_that_hide(tmp_path: Path) -> str:
    within = seen(tmp_path, LittleIsEnough(z=1.0), "median")
    return f"{within}: it is moved by as much as these differ, and nothing looks wrong"


@fault("Lies", "a client claims 10,000,000 samples, too, flower.max_weight = 1, median")
def test_samples_that_are_claimed_make_nobody_the_median(tmp_path: Path) -> str:
    weights = {"averaging.weights": "samples", "flower.max_weight": 1.0}
    grid = federation(tmp_path, {**weights, "training.steps": 4, **DEFENCES["median"]})
    run = server(grid)
    lie = liar(run, Constant(value=50.0))

    def after(client: int, reply: Message) -> Message:
        reply = lie(client, reply)
        return altered(reply, samples=10_000_000) if client == LIAR else reply

    grid.after = after
    assert all(row["capped"] == [LIAR] for row in run)
    assert float(run.server.mirror.params.abs().max()) < 5
    return "it counts as much as the median client, and its numbers do not get through"


@pytest.mark.parametrize("solver", ["scaffold", "fednova", "vrl_sgd"])
def test_solvers_whose_messages_are_more_are_refused(solver: str) -> None:
    with pytest.raises(ValueError, match=r"corrects gradients by what workers differ"):
        chosen({"aggregate.name": "median", "solver.name": solver})


def test_an_aggregate_is_given_once(tmp_path: Path) -> None:
    grid = federation(tmp_path, {"aggregate.name": "trimmed"})
    with pytest.raises(ValueError, match="'trimmed', and server_app has an aggregate of its own"):
        server(grid, Median())
    with pytest.raises(ValueError, match=r"aggregate\.name = 'medain' is not known: did you"):
        chosen({"aggregate.name": "medain"})
    with pytest.raises(ValueError, match=r"section 'attack' of 'attack.name' is not known"):
        chosen({"attack.name": "sign_flip"})
