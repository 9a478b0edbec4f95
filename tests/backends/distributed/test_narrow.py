"""Models in 16 bits send 16 bits, and sums over ranks are those of float32 all the same."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.backends.distributed.loops import WORKERS
from tests.ranks import Ranks
from torch import Tensor, nn

import partavg
from partavg.backends.distributed.collectives import AllReduce
from partavg.backends.distributed.narrow import Narrow
from partavg.backends.distributed.trailer import NotFinite
from partavg.core.wire_formats import WIRE_FORMATS
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import diloco
from partavg.solvers.scaffold import SCAFFOLD

NUMBERS = 37 * 11 + 11
WEIGHTS = (1.0, 2.0, 0.3)


def model(rank: int, kind: torch.dtype) -> nn.Module:
    torch.manual_seed(rank)
    return nn.Linear(37, 11).to(kind)


def moved(net: nn.Module, optimizer: torch.optim.Optimizer, scale: float = 1.0) -> list[Tensor]:
    """The parameters after a step along noise, before they are averaged."""
    before = [parameter.detach().clone() for parameter in net.parameters()]
    for parameter in net.parameters():
        parameter.grad = scale * torch.randn_like(parameter)
    optimizer.step()
    return [x - p.grad for x, p in zip(before, net.parameters(), strict=True)]


def averaged_once(
    rank: int, kind: torch.dtype, options: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor], int]:
    """What a rank had, what it got, and how many bytes it sent."""
    net = model(rank, kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    averager = partavg.attach(net, optimizer, interval=1, weight=WEIGHTS[rank], **options)
    own = moved(net, optimizer)
    found = [parameter.detach().clone() for parameter in net.parameters()]
    averager.detach()
    return own, found, averager.bytes


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_the_average_is_that_of_full_messages_for_half_the_bytes(
    ranks: Ranks, kind: torch.dtype
) -> None:
    told = ranks(averaged_once, kind, {})
    weights = torch.tensor(WEIGHTS) / sum(WEIGHTS)
    for place in range(2):
        rows = torch.stack([own[place] for own, _, _ in told]).float()
        mean = (weights[:, None] * rows.flatten(1)).sum(0).to(kind).view_as(told[0][0][place])
        assert all(torch.equal(found[place], mean) for _, found, _ in told)
    assert all(sent == 2 * NUMBERS for _, _, sent in told)


def after_many(rank: int, options: dict[str, Any]) -> tuple[float, float, float]:
    """The mean of a model before and after 300 averagings of ranks that hardly move."""
    net = model(rank, torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with partavg.attach(net, optimizer, **options):
        before = net.weight.float().abs().mean().item()
        for _ in range(300):
            moved(net, optimizer, 1e-6)
    after = net.weight.float()
    return before, after.abs().mean().item(), after.sum().item()


@pytest.mark.parametrize(
    "options", [{"interval": 1}, {"interval": 2, "delay": 1}], ids=["now", "late"]
)
def test_many_averagings_keep_the_mean(ranks: Ranks, options: dict[str, Any]) -> None:
    told = ranks(after_many, options)
    assert len({total for _, _, total in told}) == 1
    for before, after, _ in told:
        assert after == pytest.approx(before, rel=1e-3)


def collectives(rank: int) -> list[str]:
    """How messages go, for some models and solvers."""
    kinds = []
    for kind, options in (
        (torch.bfloat16, {}),
        (torch.bfloat16, {"solver": diloco()}),
        (torch.bfloat16, {"solver": FedProx()}),
        (torch.bfloat16, {"solver": SCAFFOLD()}),
        (torch.float32, {}),
    ):
        net = model(rank, kind)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        averager = partavg.attach(net, optimizer, interval=2, **options)
        kinds.append(type(averager._collective).__name__)
        averager.detach()
    return kinds


def test_messages_in_full_where_solvers_or_models_need_them(ranks: Ranks) -> None:
    for kinds in ranks(collectives):
        assert kinds == [Narrow.__name__] * 3 + [AllReduce.__name__] * 2


def trouble(rank: int) -> str:
    net = model(rank, torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    averager = partavg.attach(net, optimizer, interval=1)
    before = net.weight.detach().clone()
    try:
        moved(net, optimizer, float("nan") if rank == 1 else 0.0)
    except NotFinite as error:
        assert rank == 1 or torch.equal(net.weight, before)
        return str(error)
    finally:
        averager.detach()
    return ""


def test_numbers_that_are_not_finite_are_noticed(ranks: Ranks) -> None:
    said = ranks(trouble)
    assert len(said) == WORKERS
    assert all("rank 1 sent a number that is not finite after step 1" in each for each in said)


@pytest.mark.parametrize("width", [1, 3, 33])
@pytest.mark.parametrize("wire", WIRE_FORMATS)
def test_one_rank_alone(wire: str, width: int) -> None:
    """Whose messages have one row, which may begin at any byte."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = nn.Linear(width, 1, bias=False).bfloat16()
        before = net.weight.detach().clone()
        with partavg.attach(net, interval=1, wire=wire) as averager:
            averager.step()
            averager.step()
        assert torch.equal(net.weight, before)
    finally:
        dist.destroy_process_group()
