"""Machines with several ranks: synchronous inside, in parts between them."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed.loops import LR, distance, samples
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

import partavg
from partavg.solvers.fedprox import FedProx


def loop(
    net: nn.Module, mine: Tensor, options: dict[str, Any]
) -> tuple[list[dict[str, Tensor]], int]:
    """Ten steps on some samples that move on from step to step."""
    inputs, targets = samples()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    seen = []
    with partavg.attach(net, optimizer, **options) as averager:
        for step in range(10):
            chosen = (mine + 5 * step) % 60
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[chosen]), targets[chosen]).backward()
            optimizer.step()
            seen.append({k: v.clone() for k, v in net.state_dict().items()})
        sent = averager.bytes
    seen.append(dict(net.state_dict()))
    return seen, sent


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()


def machines(rank: int, options: dict[str, Any]) -> tuple[list[dict[str, Tensor]], int]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "inside"))
    return loop(net(), torch.arange(4) + 4 * rank, {**options, "group": mesh})


def two_workers(rank: int, options: dict[str, Any]) -> tuple[list[dict[str, Tensor]], int] | None:
    """Ranks 0 and 2 with the samples of both ranks of a machine: any process group will do."""
    group = dist.new_group([0, 2])
    if rank % 2:
        return None
    return loop(net(), torch.arange(8) + 4 * rank, {**options, "group": group})


@pytest.mark.parametrize(
    "options",
    [
        {"interval": 3},
        {"interval": 4, "parts": 2, "delay": 1},
        {"interval": 3, "solver": FedProx(0.3)},
    ],
)
def test_a_machine_is_one_worker_with_a_larger_batch(four: Ranks, options: dict[str, Any]) -> None:
    found, expected = four(machines, options), four(two_workers, options)
    for rank in range(4):
        theirs = expected[rank - rank % 2]
        for one, other in zip(found[rank][0], theirs[0], strict=True):
            assert distance(one, other) < 1e-9
        assert found[rank][1] < 0.6 * theirs[1], "each rank sends its share of a part"


def nan_in_one_share(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    module = net()
    averager = partavg.attach(module, interval=2, group=mesh)
    if rank == 3:
        with torch.no_grad():
            module[0].weight.fill_(torch.nan)
    averager.step()


def test_trouble_of_one_rank_is_known_to_all(four: Ranks) -> None:
    for done, text in four.answers(nan_in_one_share):
        assert not done
        assert text.startswith("NotFinite: rank 3 sent a number that is not finite after step 1")


def unfrozen(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    torch.manual_seed(rank)
    module = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3).requires_grad_(False))
    with partavg.attach(module, interval=2, group=mesh) as averager:
        averager.step()
        if rank == 3:
            module[1].requires_grad_(True)
        averager.step()


def test_a_changed_model_of_one_rank_is_known_to_all(four: Ranks) -> None:
    for done, text in four.answers(unfrozen):
        assert not done
        assert text.startswith("ValueError: rank 3: parameter '1.weight' was added or unfrozen")


def failing(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    module = net()
    with partavg.attach(module, interval=2, group=mesh) as averager:
        averager.step()
        if rank == 1:
            raise KeyError("odd")
        averager.step()


def test_a_rank_that_fails_is_named_on_all_machines(four: Ranks) -> None:
    """Also by the one that is in no group with it."""
    found = [text.splitlines()[0] for _, text in four.answers(failing)]
    assert found.pop(1) == "KeyError: 'odd'"
    for text in found:
        assert text.startswith("RankLost: rank 1 ("), found
        assert text.endswith("left after step 1: KeyError: 'odd'"), found
