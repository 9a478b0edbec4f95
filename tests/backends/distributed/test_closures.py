"""Corrections inside of closures, which make the gradients anew."""

import dataclasses
from typing import Any

import pytest
import torch
from tests.backends.distributed.loops import (
    BATCH,
    LR,
    Case,
    copy,
    distance,
    samples,
    simulated,
    split,
)
from tests.backends.distributed.loops import model as usual
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.nn import functional as F

import partavg
from partavg.data.batches import Batches

STEPS = 7


def closed(rank: int, case: Case, named: bool) -> list[dict[str, Tensor]]:
    """As `attached`, with a closure."""
    net, (inputs, targets) = usual(rank), samples()
    name, options = case.optimizer
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=LR, **options)
    batches, seen = Batches(split(), BATCH, 0), []
    with partavg.attach(net, optimizer, **case.options):
        for step in range(1, STEPS + 1):
            chosen = batches(step, None)[0][rank]

            def closure(chosen: Tensor = chosen) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(net(inputs[chosen]), targets[chosen])
                loss.backward()
                return loss

            loss = optimizer.step(closure=closure) if named else optimizer.step(closure)
            assert float(loss) > 0
            seen.append(copy(net))
    return [*seen, copy(net)]


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by place"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "solver",
    [partavg.FedProx(0.5), partavg.SCAFFOLD(), partavg.VRLSGD()],
    ids=lambda solver: type(solver).__name__,
)
def test_corrections_act_inside_closures(
    ranks: Ranks, solver: Any, momentum: float, named: bool
) -> None:
    base = partavg.SGD(momentum=momentum)
    case = Case(
        {"interval": 3, "solver": solver},
        ("SGD", {"momentum": momentum}),
        {"solver": dataclasses.replace(solver, base=base)},
    )
    expected = simulated(case, STEPS)
    for rank, found in enumerate(ranks(closed, case, named)):
        for step, (one, other) in enumerate(zip(found, expected[rank], strict=True), 1):
            assert distance(one, other) < 1e-9, f"rank {rank}, step {step}"


def proximal_twin(rank: int, by_hand: bool) -> dict[str, Tensor]:
    """LBFGS, which calls its closure many times, with mu (x − anchor) added by us or by hand."""
    torch.manual_seed(rank)
    net, (inputs, targets) = nn.Linear(5, 3).double(), samples()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=6)
    solver = None if by_hand else partavg.FedProx(2.0)
    evaluated = 0
    with partavg.attach(net, optimizer, interval=2, parts=1, solver=solver):
        for step in range(4):
            if step % 2 == 0:
                anchors = [p.detach().clone() for p in net.parameters()]

            def closure(anchors: list[Tensor] = anchors) -> Tensor:
                nonlocal evaluated
                evaluated += 1
                optimizer.zero_grad()
                loss = F.cross_entropy(net(inputs[rank::3]), targets[rank::3])
                loss.backward()
                if by_hand:
                    for parameter, anchor in zip(net.parameters(), anchors, strict=True):
                        assert parameter.grad is not None
                        parameter.grad += 2.0 * (parameter.detach() - anchor)
                return loss

            optimizer.step(closure)
    assert evaluated > 8
    return copy(net)


def test_each_evaluation_of_a_closure_is_corrected(ranks: Ranks) -> None:
    for one, other in zip(ranks(proximal_twin, True), ranks(proximal_twin, False), strict=True):
        assert distance(one, other) < 1e-12
