"""Steps that a GradScaler skips on one rank are counted, and averaging stays in step."""

from typing import Any

import pytest
import torch
from tests.backends.distributed.loops import LR, copy, distance, samples
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional as F

import partavg

SKIPS = {0: {2}, 1: {2, 5}, 2: set()}
"""The steps that ranks skip."""


def net_of(rank: int) -> nn.Sequential:
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def optimizers_of(net: nn.Sequential, kind: str) -> list[torch.optim.Optimizer]:
    if kind == "fused":
        return [torch.optim.SGD(net.parameters(), lr=LR, fused=True)]
    if kind == "several":
        return [torch.optim.SGD(net[at].parameters(), lr=LR) for at in (0, 2)]
    return [torch.optim.SGD(net.parameters(), lr=LR)]


def scaled(rank: int, kind: str, solver: Any, told: bool = True) -> tuple[Any, ...]:
    """A loop with a scaler, in which some ranks meet infinite gradients."""
    net, (inputs, targets) = net_of(rank), samples()
    optimizers = optimizers_of(net, kind)
    scaler = GradScaler("cpu", init_scale=64.0, enabled=kind != "disabled")
    given = scaler if told else None
    methods = dict(vars(scaler))
    averager = partavg.attach(net, optimizers, interval=4, solver=solver, scaler=given)
    with averager:
        for step in range(1, 8):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs[rank::3].float()), targets[rank::3])
            scaler.scale(loss).backward()
            if kind != "disabled" and step in SKIPS[rank]:
                for parameter in net.parameters():
                    assert parameter.grad is not None
                    parameter.grad.fill_(torch.inf)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            assert averager.steps == step
    assert vars(scaler).keys() == methods.keys()
    return copy(net), averager.skipped


def by_hand(rank: int, kind: str, solver: Any) -> dict[str, Tensor]:
    """The same without a scaler: gradients that would be infinite are none."""
    net, (inputs, targets) = net_of(rank), samples()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    with partavg.attach(net, optimizer, interval=4, solver=solver):
        for step in range(1, 8):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[rank::3].float()), targets[rank::3]).backward()
            if kind != "disabled" and step in SKIPS[rank]:
                optimizer.zero_grad()
            optimizer.step()
    return copy(net)


@pytest.mark.parametrize("solver", [None, partavg.FedProx(0.5)], ids=["plain", "FedProx"])
@pytest.mark.parametrize("kind", ["plain", "fused", "several", "disabled"])
def test_skipped_steps_are_counted(ranks: Ranks, kind: str, solver: Any) -> None:
    expected = ranks(by_hand, kind, solver)
    for rank, (found, skipped) in enumerate(ranks(scaled, kind, solver)):
        assert distance(found, expected[rank]) < 1e-5
        assert distance(found, expected[0]) < 1e-5
        assert skipped == (0 if kind == "disabled" else len(SKIPS[rank]))


def controls(rank: int) -> tuple[Tensor, float]:
    """SCAFFOLD's own control after a cycle, in which a rank skips a step, and what it must be."""
    net, (inputs, targets) = net_of(0), samples()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    scaler = GradScaler("cpu", init_scale=4.0)
    seen = []
    averager = partavg.attach(
        net, optimizer, interval=3, parts=1, solver=partavg.SCAFFOLD(), scaler=scaler
    )
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(net(inputs[rank::3].float()), targets[rank::3])).backward()
        grads = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        grads /= scaler.get_scale()
        if rank == 1 and step == 1:
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.grad.fill_(torch.nan)
        else:
            seen.append(grads)
        scaler.step(optimizer)
        scaler.update()
    found = averager.state_dict()["row"]["memory"]["control"][0]
    averager.detach()
    return found, float((found - torch.stack(seen).mean(0)).abs().max())


def test_gradients_are_estimated_from_the_steps_that_were_taken(ranks: Ranks) -> None:
    for found, off in ranks(controls):
        assert found.abs().max() > 1e-3
        assert off < 1e-5


def untold(rank: int) -> None:
    scaled(rank, "plain", None, told=False)


def test_a_scaler_that_attach_does_not_know_is_refused_at_the_first_step(ranks: Ranks) -> None:
    for done, text in ranks.answers(untold):
        assert not done
        assert text.startswith("ValueError: the optimizer is stepped by a GradScaler"), text
        assert "give it to attach, scaler=scaler" in text.splitlines()[0]


ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is not set up")


@ALONE
def test_a_scaler_that_is_never_updated_is_missed() -> None:
    net = net_of(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    averager = partavg.attach(net, optimizer, interval=2, scaler=GradScaler("cpu"))
    net(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"scaler.update\(\) was not called"):
        averager.consensus()
    with pytest.raises(ValueError, match=r"scaler.update\(\) was not called"):
        optimizer.step()
    averager.detach()


@ALONE
def test_a_scaler_without_its_optimizer_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="with the optimizer whose steps it skips"):
        partavg.attach(net_of(0), interval=2, scaler=GradScaler("cpu"))
