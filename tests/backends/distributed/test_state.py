"""Checkpoints of a user's loop: what goes on is bit-identical to what was never stopped."""

import io
from typing import Any

import pytest
import torch
from tests.backends.distributed.loops import LR, model, samples
from tests.outside import FedDyn, Noisy
from tests.ranks import Ranks
from torch import Tensor
from torch.nn import functional as F

import partavg
from partavg.backends.distributed.collectives import NoOthers
from partavg.core.adapt import AdaComm
from partavg.core.pace import Fixed
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import fedavgm
from partavg.solvers.scaffold import SCAFFOLD

CASES: dict[str, dict[str, Any]] = {
    "plain": {"interval": 4},
    "delay": {"interval": 4, "delay": 3},
    "scaffold": {"interval": 4, "solver": SCAFFOLD()},
    "from outside": {"interval": 4, "solver": FedDyn(0.3)},
    "aggregated": {"interval": 4, "aggregate": Noisy(), "buffers": "local"},
    "outer": {"interval": 3, "parts": 1, "solver": fedavgm(base=FedProx(0.1))},
    "int8": {"interval": 4, "wire": "int8"},
    "int8 delay": {"interval": 2, "wire": "int8", "delay": 1},
    "int4": {"interval": 4, "wire": "int4", "uneven": True},
    "top-k": {"interval": 4, "wire": "top-k", "delay": 1},
    "pace": {"interval": 2, "parts": 1, "pace": Fixed(2, (1, 2), 3)},
    "adapts": {"interval": 4, "adapt": AdaComm(4)},
    "shuffle": {"interval": 4, "shuffle": True},
}


def twice(rank: int, options: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train 13 steps at once, and with a stop after 6; the second half in new objects."""
    whole, _ = part(rank, options, None, 13)
    _, saved = part(rank, options, None, 6)
    resumed, _ = part(rank, options, saved, 13)
    return whole, resumed


def part(
    rank: int, options: dict[str, Any], saved: bytes | None, until: int
) -> tuple[dict[str, Tensor], bytes]:
    net = model().float()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    averager = partavg.attach(net, optimizer, **options)
    if saved:
        loaded = torch.load(io.BytesIO(saved), weights_only=True)
        net.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        averager.load_state_dict(loaded["averager"])
    inputs, targets = samples()
    while averager.steps < until:
        mine = (torch.arange(6) + 20 * rank + averager.steps) % 60
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs[mine].float()), targets[mine])
        averager.see(loss)
        loss.backward()
        optimizer.step()
    kept = io.BytesIO()
    state = {"model": net, "optimizer": optimizer, "averager": averager}
    torch.save({name: thing.state_dict() for name, thing in state.items()}, kept)
    averager.consensus()
    averager.detach()
    return net.state_dict(), kept.getvalue()


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_goes_on_bit_for_bit(ranks: Ranks, name: str) -> None:
    for whole, resumed in ranks(twice, CASES[name]):
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def test_a_checkpoint_of_another_wire_is_refused() -> None:
    with pytest.raises(ValueError, match="attach with the same wire"):
        NoOthers().load({"known": {0: torch.ones(2)}}, torch.device("cpu"))
    NoOthers().load({}, torch.device("cpu"))
