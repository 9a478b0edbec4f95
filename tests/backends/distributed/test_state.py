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
    "streaming": {
        "interval": 7,
        "parts": 2,
        "partition": "strided",
        "offsets": (1, 4),
        "delay": 3,
        "mix": 0.3,
        "solver": fedavgm(nesterov=True),
    },
    "fresh": {"interval": 6, "parts": 2, "partition": "fresh", "delay": 2, "solver": fedavgm()},
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


ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is not set up")


def saved(**options: Any) -> dict[str, Any]:
    net = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    averager = partavg.attach(net, optimizer, **{"interval": 4, **options})
    state = averager.state_dict()
    averager.detach()
    return state


@ALONE
@pytest.mark.parametrize("known", [True, False], ids=["ours", "0.1"])
@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"interval": 2}, "the state was saved with interval 2, and this averager has 4: attach"),
        ({"parts": 2}, "the state was saved with parts 2, and this averager has 4: attach with"),
        ({"solver": partavg.FedProx(0.1)}, "saved with solver FedProx on Given, and this averager"),
        ({"partition": "contiguous"}, "the state was saved with partition"),
        ({"wire": "int8"}, "the state was saved with wire int8, and this averager has full"),
    ],
)
def test_the_state_of_another_averager_is_refused(
    other: dict[str, Any], sentence: str, known: bool
) -> None:
    state = saved(**other)
    if not known:
        del state["settings"]
        sentence = "the state is of an averager with other parts, another solver or another model"
    averager = partavg.attach(torch.nn.Linear(4, 3), interval=4)
    if known or other.keys() & {"interval", "parts", "solver"}:
        with pytest.raises(ValueError, match=sentence):
            averager.load_state_dict(state)
    averager.load_state_dict(saved())


@ALONE
@pytest.mark.parametrize("nothing", [None, {}, 3, {"row": {}}])
def test_what_is_no_state_is_refused(nothing: Any) -> None:
    averager = partavg.attach(torch.nn.Linear(4, 3), interval=4)
    with pytest.raises(ValueError, match="this is no state of an averager"):
        averager.load_state_dict(nothing)
