"""One NCCL rank on a GPU: the branch where trouble is read late, and scalers inside optimizers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler

import partavg
from partavg.backends.distributed import Averager
from partavg.backends.distributed.trailer import NotFinite

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(steps: int, happens: Any = None, **options: Any) -> Averager:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, fused=True)
    scaler = options.get("scaler")
    with partavg.attach(net, optimizer, interval=2, **options) as averager:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            loss = net(torch.randn(4, 5, device="cuda")).square().mean()
            (scaler.scale(loss) if scaler else loss).backward()
            if happens:
                happens(step, net)
            scaler.step(optimizer) if scaler else optimizer.step()
            if scaler:
                scaler.update()
    assert averager.steps == steps
    assert all(bool(p.isfinite().all()) for p in net.parameters())
    return averager


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delay": 1},
        {"wire": "int8"},
        {"solver": partavg.FedProx(0.1)},
        {"solver": partavg.Outer()},
    ],
    ids=str,
)
def test_training_goes_through(options: dict[str, Any]) -> None:
    train(5, **options)


@pytest.mark.parametrize("solver", [None, partavg.FedProx(0.1)])
def test_a_step_skipped_inside_of_a_fused_optimizer_is_counted(solver: Any) -> None:
    def overflow(step: int, net: nn.Module) -> None:
        if step in (2, 3):
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.grad.fill_(torch.inf)

    assert train(5, overflow, solver=solver, scaler=GradScaler("cuda")).skipped == 2


def test_nan_is_told_with_the_next_message() -> None:
    def poison(step: int, net: nn.Module) -> None:
        if step == 3:
            nn.init.constant_(net[0].weight, torch.nan)  # type: ignore[index]

    with pytest.raises(NotFinite, match="rank 0 sent a number that is not finite after step"):
        train(6, poison)
