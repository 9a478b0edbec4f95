"""A look at the averaged model: it is what it should be, and training never knows."""

from typing import Any

import pytest
import torch
from tests.backends.distributed.loops import LR, WORKERS, copy, distance, samples
from tests.outside import Noisy
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import partavg
from partavg.core.adapt import AdaComm
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import Outer, diloco, fedavgm
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.sgd import SGD

CASES: dict[str, dict[str, Any]] = {
    "plain": {"interval": 4},
    "weighted": {"interval": 2, "weight": (3.0, 1.0, 0.5)},
    "delay": {"interval": 4, "delay": 3},
    "scaffold": {"interval": 4, "solver": SCAFFOLD()},
    "outer": {"interval": 3, "parts": 1, "solver": fedavgm(base=FedProx(0.1))},
    "outer late": {"interval": 3, "delay": 2, "mix": 0.3, "solver": Outer(SGD(0.9), 0.7)},
    "int8": {"interval": 4, "wire": "int8"},
    "int8 late": {"interval": 2, "wire": "int8", "delay": 1},
    "adapts": {"interval": 4, "adapt": AdaComm(4)},
    "personal": {"interval": 4, "local": ["5.*"], "buffers": "every"},
    "own statistics": {"interval": 4, "buffers": "local"},
    "mixed": {"interval": 3, "delay": 1, "mix": 0.5, "solver": diloco()},
    "fresh": {"interval": 4, "partition": "fresh"},
    "aggregated": {"interval": 4, "aggregate": Noisy(), "buffers": "local"},
}
STEPS = 9
State = dict[str, Tensor]


def model(rank: int) -> nn.Module:
    torch.manual_seed(rank)
    return nn.Sequential(
        nn.Linear(5, 8, bias=False),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    ).double()


def trained(
    rank: int, options: dict[str, Any], looks: dict[str, Any] | None
) -> tuple[list[tuple[State, State]], Any]:
    """Own models and what was looked at on the way; the model and all states at the end."""
    net, (inputs, targets) = model(rank), samples()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    options = {**options, "weight": options.get("weight", (1.0,) * WORKERS)[rank]}
    averager, seen = partavg.attach(net, optimizer, **options), []
    for step in range(STEPS):
        mine = (torch.arange(6) + 20 * rank + step) % 60
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs[mine]), targets[mine])
        averager.see(loss)
        loss.backward()
        optimizer.step()
        if looks is not None:
            own = copy(net)
            with averager.averaged(**looks):
                seen.append((own, copy(net)))
            assert all(torch.equal(own[name], now) for name, now in copy(net).items())
    kept = [copy(net), optimizer.state_dict(), averager.state_dict()]
    averager.consensus()
    averager.detach()
    return seen, [*kept, copy(net)]


def equal(one: Any, other: Any) -> bool:
    """Whether two states are the same, to the bit; how much was sent aside."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            equal(one[k], other[k]) for k in one if k not in ("bytes", "messages")
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", CASES)
def test_looking_changes_nothing_and_shows_the_average(ranks: Ranks, name: str) -> None:
    options = CASES[name]
    without = ranks(trained, options, None)
    looking = ranks(trained, options, {})
    for (_, expected), (_, found) in zip(without, looking, strict=True):
        assert equal(expected, found)
    if "aggregate" in options:
        return
    weights = torch.tensor(options.get("weight", (1.0,) * WORKERS), dtype=torch.float64)
    for ranked in zip(*(seen for seen, _ in looking), strict=True):
        for key, shown in ranked[0][1].items():
            own = [mine[key] for mine, _ in ranked]
            local = key.startswith("5.") and name == "personal"
            local |= "running" in key and options.get("buffers") == "local"
            if local or not shown.is_floating_point():
                assert all(torch.equal(mine[key], look[key]) for mine, look in ranked)
                continue
            assert all(torch.equal(shown, look[key]) for _, look in ranked), key
            mean = torch.tensordot(weights / weights.sum(), torch.stack(own), 1)
            torch.testing.assert_close(shown, mean, rtol=0, atol=1e-12)


def outer_looks(rank: int, buffers: str) -> list[tuple[bool, bool, int]]:
    """Whether the outer model is what a step was taken to, and how much it took to see it."""
    net, (inputs, targets) = model(rank), samples()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    averager = partavg.attach(net, optimizer, interval=2, parts=1, solver=diloco(), buffers=buffers)
    found, last = [], copy(net)
    for step in range(6):
        mine = (torch.arange(6) + 20 * rank + step) % 60
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[mine]), targets[mine]).backward()
        optimizer.step()
        if step % 2:
            last = copy(net)
        sent = averager.bytes
        with averager.averaged(outer=True):
            now = dict(net.named_parameters())
            same = all(torch.equal(now[name], last[name]) for name in now)
        found.append(
            (same, torch.equal(copy(net)["5.bias"], last["5.bias"]), averager.bytes - sent)
        )
    averager.detach()
    return found


def test_the_outer_model_is_known_to_all(ranks: Ranks) -> None:
    for found in ranks(outer_looks, "local"):
        assert all(same and not sent for same, _, sent in found)
        assert [own for _, own, _ in found] == [False, True] * 3, "one's own goes on in between"
    for found in ranks(outer_looks, "part"):
        assert all(same and sent for same, _, sent in found), "statistics are averaged"


def state_dicts(rank: int) -> tuple[State, State, State]:
    """The model's state, the consensus's, and the model after that became the consensus."""
    net = model(rank)
    net.register_buffer("rows", torch.tensor(7 * rank))
    averager = partavg.attach(net, interval=4)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter))
    averager.step()
    own = copy(net)
    found = averager.consensus_state_dict(cpu=bool(rank))
    assert all(torch.equal(own[name], now) for name, now in copy(net).items())
    averager.consensus()
    averager.detach()
    return own, found, copy(net)


def test_the_state_of_the_consensus(ranks: Ranks) -> None:
    for own, found, consensus in ranks(state_dicts):
        assert list(found) == list(own)
        assert distance(found, consensus) < 1e-15
        assert distance(found, own) > 0.01
        assert torch.equal(found["rows"], own["rows"])


def averaged_copies(rank: int) -> tuple[State, State]:
    """A running mean of the model before and after it is averaged; its head is personal."""
    net = model(rank)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    with partavg.attach(net, interval=4, local=["5.*"]) as averager:
        for _ in range(3):
            with torch.no_grad():
                for tensor in (*net.parameters(), net[1].running_mean, net[1].running_var):
                    tensor.add_(torch.rand_like(tensor))
            averager.step()
            average.update_parameters(net)
        before = copy(average)
        averager.average_(average)
    return before, copy(average)


def test_running_means_are_averaged_beside_the_model(ranks: Ranks) -> None:
    found = ranks(averaged_copies)
    for key in found[0][0]:
        before, after = (torch.stack([each[at][key] for each in found]) for at in (0, 1))
        if key.startswith("module.5.") or not before.is_floating_point():
            assert torch.equal(before, after), key
        else:
            torch.testing.assert_close(after, before.mean(0, keepdim=True).expand_as(after))
            assert torch.equal(after[0], after[1])
            assert not torch.equal(before, after), key


def mistakes(rank: int) -> list[str]:
    """What is said where ranks do not do the same, or what cannot be done."""

    def said(wrong: Any) -> str:
        net = model(rank)
        optimizer = torch.optim.SGD(net.parameters(), lr=LR)
        averager = partavg.attach(net, optimizer, interval=4, parts=2)
        try:
            wrong(net, optimizer, averager)
        except ValueError as error:
            return str(error)
        finally:
            averager.detach()
        return ""

    def trains_inside(net: nn.Module, optimizer: Any, averager: Any) -> None:
        with averager.averaged():
            optimizer.step()

    def one_alone(net: nn.Module, optimizer: Any, averager: Any) -> None:
        if rank == 1:
            with averager.averaged():
                return
        optimizer.step()
        optimizer.step()

    def another(net: nn.Module, optimizer: Any, averager: Any) -> None:
        if rank == 1:
            averager.consensus()
        averager.consensus_state_dict()

    def no_outer(net: nn.Module, optimizer: Any, averager: Any) -> None:
        with averager.averaged(outer=True):
            return

    def other_modules(net: nn.Module, optimizer: Any, averager: Any) -> None:
        averager.average_(nn.Linear(2, 2 + rank))

    return [said(w) for w in (trains_inside, one_alone, another, no_outer, other_modules)]


def test_what_does_not_go_is_said_on_all_ranks(ranks: Ranks) -> None:
    for inside, alone, another, outer, modules in ranks(mistakes):
        assert "the model is the averaged one inside `with averager.averaged():`" in inside
        assert "rank 0 averages after step 2, rank 1 asks for the averaged model after" in alone
        assert "rank 1 asks for the consensus after step 0" in another
        assert "solver Given takes no outer steps" in outer
        assert "other tensors on some ranks" in modules
