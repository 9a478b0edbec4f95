"""Ranks that take different steps: at another pace, or fewer, as the simulator's workers do."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.backends.distributed.loops import (
    BATCH,
    LR,
    WORKERS,
    Case,
    copy,
    distance,
    model,
    samples,
    simulated,
    split,
)
from tests.backends.distributed.test_trouble import sentences
from tests.outside import median
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.nn import functional as F

import partavg
from partavg.core.adapt import AdaComm, PostLocal
from partavg.core.pace import Drawn, Fixed
from partavg.data.batches import Batches
from partavg.solvers.adam import adam
from partavg.solvers.fednova import FedNova
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import fedavgm
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD
from partavg.solvers.vrl_sgd import VRLSGD

MOMENTUM = SGD(momentum=0.9, weight_decay=1e-2)
PLAIN = ("SGD", {})
LAST = (6, 11, 3)
"""The step after which each rank has no batches left."""
FIXED = Fixed(4, (1, 4, 3), WORKERS)
DRAWN = Drawn(4, 1, 4, WORKERS, seed=3)


@dataclass(frozen=True)
class Ends:
    """A pace of which each rank takes the steps up to its last."""

    pace: Any
    last: tuple[int, ...]

    def __call__(self, step: int) -> NDArray[np.bool_]:
        whole = np.ones(WORKERS, bool) if self.pace is None else self.pace(step)
        mask: NDArray[np.bool_] = whole & (np.array(self.last) >= step)
        return mask


def with_a_loop(
    rank: int, case: Case, last: tuple[int, ...]
) -> tuple[dict[int, dict[str, Tensor]], int]:
    """A rank's model after each of its steps, and at the end; the steps it counts."""
    torch.manual_seed(rank)
    net, (inputs, targets) = model(), samples()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(rank * torch.rand_like(parameter))  # attach makes them alike
    name, options = case.optimizer
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=LR, **options)
    batches, seen = Batches(split(), BATCH, 0), {}
    given = dict(case.options)
    turns = Ends(given.get("pace"), last)
    if "weight" in given:
        given["weight"] = given["weight"][rank]
    if isinstance(turns.pace, int):  # each rank's own
        given["pace"], turns = FIXED.counts[rank], Ends(FIXED, last)
    with partavg.attach(net, optimizer, **given) as averager:
        for step in range(1, last[rank] + 1):
            if turns(step)[rank]:
                chosen = batches(step, None)[0][rank]
                loss = F.cross_entropy(net(inputs[chosen]), targets[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                assert averager.steps == step
                seen[step] = copy(net)
    seen[0] = copy(net)
    return seen, averager.steps


def compared(
    ranks: Ranks, case: Case, last: tuple[int, ...], until: int = 0, *, plain_end: bool = True
) -> None:
    case.simulated = {
        "solver": MOMENTUM,
        **{k: v for k, v in case.options.items() if k == "solver"},
        **case.simulated,
    }
    own = case.options.get("pace")
    pace = Ends(FIXED if isinstance(own, int) else own, last)
    twin = Case({**case.options, "pace": pace}, case.optimizer, case.simulated)
    for name in ("uneven", "weight"):
        twin.options.pop(name, None)
    expected = simulated(twin, until or max(last))
    found = ranks(with_a_loop, case, last)
    for rank, (seen, steps) in enumerate(found):
        assert steps == max(last)
        assert len(seen) > 1
        for step, one in seen.items():
            if step or plain_end:
                assert distance(one, expected[rank][step - 1]) < 1e-9, f"rank {rank}, step {step}"
        assert distance(seen[0], found[0][0][0]) == 0


ENDINGS = {
    "partial": Case({"interval": 4}),
    "periodic": Case({"interval": 4, "parts": 1}),
    "between": Case({"interval": 4, "parts": 2}),
    "synchronous": Case({"interval": 1}),
    "weights": Case({"interval": 4, "weight": (3, 1, 2)}, simulated={"weights": [3, 1, 2]}),
    "adam": Case({"interval": 4}, ("Adam", {}), {"solver": adam()}),
    "fedprox": Case(
        {"interval": 4, "solver": FedProx(0.5)}, simulated={"solver": FedProx(0.5, MOMENTUM)}
    ),
    "scaffold": Case({"interval": 4, "parts": 2, "solver": SCAFFOLD()}, PLAIN),
    "fedavgm": Case(
        {"interval": 4, "parts": 2, "solver": fedavgm()},
        simulated={"solver": fedavgm(base=MOMENTUM)},
    ),
    "aggregated": Case({"interval": 2, "aggregate": median}),
    "post-local": Case({"interval": 4, "adapt": PostLocal(5)}),
    "offsets": Case({"interval": 4, "offsets": (1, 3, 3), "mix": 0.3}),
    "fresh": Case({"interval": 4, "partition": "fresh", "solver": fedavgm()}, PLAIN),
    "mix": Case({"interval": 4, "parts": 2, "mix": 0.3}),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_ranks_end_one_by_one_as_workers_stand_still(ranks: Ranks, name: str) -> None:
    case = ENDINGS[name]
    case.options["uneven"] = True
    compared(ranks, case, LAST)


@pytest.mark.parametrize(("parts", "delay"), [(4, 2), (1, 3), (2, 1)])
def test_averages_on_their_way_arrive_when_ranks_have_ended(
    ranks: Ranks, parts: int, delay: int
) -> None:
    """All rest until the step before the next averaging, and what arrives until then has."""
    case = Case({"interval": 4, "parts": parts, "delay": delay, "uneven": True})
    compared(ranks, case, (6, 9, 3), until={4: 9, 2: 9, 1: 11}[parts])


def even_run(rank: int, options: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The model and the solver's memory after a consensus, which all ask for at the same step."""
    torch.manual_seed(rank)
    net, (inputs, targets) = model(), samples()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    averager = partavg.attach(net, optimizer, interval=4, **options)
    for step in range(6):
        optimizer.zero_grad()
        chosen = (torch.arange(6) + 20 * rank + step) % 60
        F.cross_entropy(net(inputs[chosen]), targets[chosen]).backward()
        optimizer.step()
    averager.consensus()
    row = averager.state_dict()["row"]
    averager.detach()
    return copy(net), {**row["memory"], **{name: row[name] for name in ("steps", "taken")}}


@pytest.mark.parametrize(
    "options",
    [
        {"solver": SCAFFOLD()},
        {"solver": SCAFFOLD(), "parts": 1},
        {"solver": SCAFFOLD(), "parts": 2, "delay": 1},
        {"solver": fedavgm(), "delay": 3},
    ],
)
def test_ranks_that_end_together_notice_nothing(ranks: Ranks, options: dict[str, Any]) -> None:
    plain, uneven = (ranks(even_run, {**options, "uneven": flag}) for flag in (False, True))
    for (one, memory), (other, kept) in zip(plain, uneven, strict=True):
        parameters = {name: value for name, value in one.items() if "running" not in name}
        assert distance(parameters, other) < 1e-12
        assert memory.keys() == kept.keys()
        for name, entry in memory.items():
            torch.testing.assert_close(kept[name], entry, rtol=0, atol=1e-12)


PACES = {
    "partial": Case({"interval": 4, "pace": FIXED}),
    "periodic": Case({"interval": 4, "parts": 1, "pace": DRAWN}),
    "between": Case({"interval": 4, "parts": 2, "pace": DRAWN}),
    "numbers": Case({"interval": 4, "pace": 1}),
    "delay": Case({"interval": 4, "parts": 2, "delay": 1, "pace": FIXED}),
    "fedprox": Case(
        {"interval": 4, "solver": FedProx(0.5), "pace": FIXED},
        simulated={"solver": FedProx(0.5, MOMENTUM)},
    ),
    "scaffold": Case({"interval": 4, "solver": SCAFFOLD(), "pace": DRAWN}, PLAIN),
    "scaffold periodic": Case(
        {"interval": 4, "parts": 1, "solver": SCAFFOLD(), "pace": FIXED}, PLAIN
    ),
    "fednova": Case({"interval": 4, "solver": FedNova(), "pace": FIXED}, PLAIN),
    "fednova periodic": Case(
        {"interval": 4, "parts": 1, "solver": FedNova(), "pace": DRAWN},
        simulated={"solver": FedNova(MOMENTUM)},
    ),
}


@pytest.mark.parametrize("name", PACES)
def test_ranks_keep_the_pace_of_workers(ranks: Ranks, name: str) -> None:
    plain_end = not name.startswith("fednova")  # its average is weighted by directions
    compared(ranks, PACES[name], (12,) * WORKERS, plain_end=plain_end)


def test_a_pace_ends_one_by_one_as_well(ranks: Ranks) -> None:
    compared(ranks, Case({"interval": 4, "pace": FIXED}), (8, 11, 3))


def epochs(
    rank: int, wire: str, dtype: torch.dtype = torch.float64
) -> tuple[list[int], list[dict[str, Tensor]]]:
    """Three epochs of different length, with the averaged model at the end of each."""
    torch.manual_seed(rank)
    net, (inputs, targets) = model().to(dtype), samples()
    inputs = inputs.to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    counts, seen = [], []
    options: Any = {"interval": 4, "parts": 2, "uneven": True, "wire": wire}
    with partavg.attach(net, optimizer, **options) as averager:
        for epoch in range(3):
            for _ in range((5, 3, 4)[(rank + epoch) % 3]):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs[rank::3]), targets[rank::3]).backward()
                optimizer.step()
            averager.consensus()
            counts.append(averager.steps)
            seen.append(copy(net))
    return counts, seen


@pytest.mark.parametrize("wire", ["full", "int8", "top-k"])
def test_training_goes_on_after_a_consensus(ranks: Ranks, wire: str) -> None:
    found = ranks(epochs, wire)
    for counts, seen in found:
        assert counts == [5, 10, 15]
        assert all(distance(a, b) == 0 for a, b in zip(seen, found[0][1], strict=True))
    full = ranks(epochs, "full")[0][1]
    apart = distance(full[-1], copy(model()))
    assert distance(found[0][1][-1], full[-1]) <= (0 if wire == "full" else 0.5 * apart)


def test_narrow_models_may_be_uneven(ranks: Ranks) -> None:
    found = ranks(epochs, "full", torch.bfloat16)
    for counts, seen in found:
        assert counts == [5, 10, 15]
        assert all(distance(a, b) == 0 for a, b in zip(seen, found[0][1], strict=True))


class Direct(nn.Module):
    """A model that is trained without being called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def loss(self) -> Tensor:
        return self.inner(torch.ones(1, 3)).square().sum()


def not_called(rank: int, *, told: bool) -> int:
    net = Direct()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    with partavg.attach(net, optimizer, interval=2, pace=1 if rank == 1 else 2) as averager:
        for _ in range(1 if rank == 1 else 2):
            if told:
                averager.catch_up()
            net.loss().backward()
            optimizer.step()
    return averager.steps


def told(rank: int) -> int:
    return not_called(rank, told=True)


def not_told(rank: int) -> int:
    return not_called(rank, told=False)


def test_a_model_that_is_not_called_is_told_to_catch_up(ranks: Ranks) -> None:
    assert ranks(told) == [2, 2, 2]
    _, stopped, _ = ranks.answers(not_told)
    assert "call model(…) in every step, or averager.catch_up() before it" in stopped[1]


def attached_with(rank: int, options: dict[str, Any]) -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    if "each" in options:
        options["pace"] = options.pop("each")[rank]
    partavg.attach(net, optimizer, **{"interval": 4, **options}).detach()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"pace": 5}, "rank 0 cannot start: 5 local steps in an interval of 4 cannot be"),
        ({"each": (1, 9, 2)}, "rank 1 cannot start: 9 local steps in an interval of 4 cannot be"),
        ({"each": (1, None, 2)}, "rank 1 has "),
        (
            {"pace": Fixed(4, (1,), 2)},
            "rank 0 cannot start: pace Fixed gives an array of shape [2]",
        ),
        ({"pace": "slow"}, "rank 0 cannot start: pace 'slow' is no function of the step"),
        ({"uneven": True, "solver": VRLSGD()}, "rank 0 cannot start: solver VRLSGD needs workers"),
        ({"uneven": True, "adapt": AdaComm(4)}, "rank 0 cannot start: uneven=True does not go wit"),
        ({"solver": FedNova()}, "rank 0 cannot start: solver FedNova is for workers that take"),
    ],
)
def test_what_cannot_be_uneven_is_refused(ranks: Ranks, options: Any, expected: str) -> None:
    answers = ranks.answers(attached_with, options)
    assert all(text.startswith(f"ValueError: {expected}") for _, text in answers), answers


def short(rank: int) -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    with partavg.attach(net, optimizer, interval=4):
        for _ in range(5 + rank):
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()


def test_the_remedy_is_named(ranks: Ranks) -> None:
    found = sentences(ranks, short)
    assert all("if some have fewer batches, attach with uneven=True" in text for text in found)
