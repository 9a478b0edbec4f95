"""What `partavg plan` says of memory is what attached models take."""

import gc
from time import monotonic
from typing import Any

import pytest
import torch
from tests.backends.distributed.loops import WORKERS
from tests.limits import seconds
from tests.ranks import Ranks
from torch import Tensor, nn

import partavg
from partavg.core.schedule import Schedule
from partavg.cost.memory import memory_beside, remembered
from partavg.solvers.fedprox import FedProx
from partavg.solvers.outer import diloco, fedadam
from partavg.solvers.scaffold import SCAFFOLD
from partavg.solvers.vrl_sgd import VRLSGD

CASES: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "plain": (torch.float32, {}),
    "late": (torch.float32, {"delay": 1}),
    "int8": (torch.float32, {"wire": "int8"}),
    "scaffold": (torch.float32, {"solver": SCAFFOLD()}),
    "diloco": (torch.float32, {"solver": diloco()}),
    "diloco, late, int8": (torch.float32, {"solver": diloco(), "delay": 1, "wire": "int8"}),
    "fedadam": (torch.float32, {"solver": fedadam()}),
    "half": (torch.bfloat16, {}),
    "half, late": (torch.bfloat16, {"delay": 2}),
    "half, diloco": (torch.bfloat16, {"solver": diloco()}),
    "half, diloco, params": (torch.bfloat16, {"solver": diloco(), "memory": "params"}),
    "double, diloco": (torch.float64, {"solver": diloco()}),
}
WIDE = 384
NUMBERS = 2 * (WIDE + 1) * WIDE


def storages() -> dict[int, int]:
    """Bytes of all tensors of this process that are not frozen, by address."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (Tensor, nn.Parameter)]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def _sum(mine: set[int]) -> int:
    return sum(size for at, size in storages().items() if at not in mine)


def live(rank: int, kind: torch.dtype, options: dict[str, Any], most: float) -> int:
    """Bytes beside model, gradients and optimizer after three cycles."""
    gc.freeze()  # what was there before does not count
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)).to(kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    averager = partavg.attach(net, optimizer, interval=4, **options)
    for _ in range(14):
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    averager.state_dict()  # what is on its way has arrived then
    own = [t for p in net.parameters() for t in (p, p.grad) if t is not None]
    mine = {tensor.untyped_storage().data_ptr() for tensor in own}
    until, found = monotonic() + seconds(20), _sum(mine)
    while found > most and monotonic() < until:  # gloo lets go of messages a moment later
        found = _sum(mine)
    averager.detach()
    gc.unfreeze()
    return found


@pytest.mark.parametrize("name", CASES)
def test_memory_beside_the_model(ranks: Ranks, name: str) -> None:
    kind, options = CASES[name]
    planned = memory_beside(
        NUMBERS, Schedule(4, 4), workers=WORKERS, width=kind.itemsize, **options
    )
    close = 0.1 * NUMBERS + 20_000
    for found in ranks(live, kind, options, planned + close):
        assert abs(found - planned) < close
        if name == "diloco":
            assert found <= 2.01 * 4 * NUMBERS, "two models: anchor and momentum"


def test_what_solvers_remember_on_top_of_an_optimizer() -> None:
    found = [remembered(s) for s in (FedProx(), VRLSGD(), SCAFFOLD(), diloco(), fedadam())]
    assert found == [1, 1, 3, 2, 3]
    assert remembered(partavg.SGD(0.9)) == 0
