"""Training loops of sharded models as users write them, and of two unsharded workers."""

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from tests.backends.distributed.loops import samples
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional as F

import partavg
from partavg.backends.distributed import Averager

State = dict[str, Tensor]
STEPS, LR = 9, 0.05


def model(hidden: int = 7, *, normed: bool = False) -> nn.Module:
    """Tensors of odd numbers of rows, two of a single row: some ranks hold nothing of these."""
    return nn.Sequential(
        nn.Linear(5, hidden),
        nn.BatchNorm1d(hidden) if normed else nn.Identity(),
        nn.Tanh(),
        nn.Linear(hidden, 5, bias=False),
        nn.Linear(5, 1),
        Spread(),
    ).double()


class Spread(nn.Module):
    """One number as three outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, 1.0, -1.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


@cache
def mesh_of(*shape: int) -> DeviceMesh:
    names = ("replicate", "shard", "tensor")
    return init_device_mesh("cpu", shape, mesh_dim_names=names[: len(shape)])


def fully_sharded(rank: int, mesh: DeviceMesh, normed: bool = False) -> nn.Module:
    """Every rank seeds by its number, as many programs do."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(rank)
    net = model(normed=normed)
    fully_shard(net[0], mesh=mesh["shard"])
    fully_shard(net, mesh=mesh["shard"])
    return net


def tensor_parallel(rank: int, mesh: DeviceMesh, name: str = "shard") -> nn.Module:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(rank)
    net = model(10)  # halves of it are odd still; torch cannot cut odd numbers
    plan = {"0": ColwiseParallel(), "3": RowwiseParallel()}
    parallelize_module(net, mesh[name], plan)
    return net


def both(rank: int, mesh: DeviceMesh) -> nn.Module:
    """FSDP of what tensor parallelism leaves."""
    from torch.distributed.fsdp import fully_shard

    net = tensor_parallel(rank, mesh, "tensor")
    fully_shard(net, mesh=mesh["shard"])
    return net


def whole(tensor: Any) -> Tensor:
    found = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach().clone()


def full(net: nn.Module) -> State:
    return {name: whole(tensor) for name, tensor in net.state_dict().items()}


def optimizer_of(net: nn.Module, given: tuple[str, dict[str, Any]]) -> torch.optim.Optimizer:
    name, options = given
    made: torch.optim.Optimizer = getattr(torch.optim, name)(net.parameters(), lr=LR, **options)
    return made


def batch(numbers: Tensor, step: int) -> tuple[Tensor, Tensor]:
    inputs, targets = samples()
    chosen = (numbers + 5 * step) % 60
    return inputs[chosen], targets[chosen]


def train(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    averager: Averager,
    numbers: Tensor,
    until: int = STEPS,
) -> list[State]:
    """The whole model after every step."""
    seen = []
    while averager.steps < until:
        inputs, targets = batch(numbers, averager.steps)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs), targets)
        averager.see(loss)
        loss.backward()
        optimizer.step()
        seen.append(full(net))
    return seen


@cache
def first_ranks() -> dist.ProcessGroup:
    """Rank 0 of each replica of two; a group costs as much as a loop, so it is kept."""
    return dist.new_group([0, 2])


def compared(
    rank: int, make: Any, options: dict[str, Any], optimizer: tuple[str, dict[str, Any]]
) -> tuple[list[State], list[State] | None]:
    """Two replicas of two ranks, and then ranks 0 and 2 as unsharded workers on their samples."""
    mesh = mesh_of(2, 2)
    net = make(rank, mesh)
    data_parallel = make is fully_sharded
    own = optimizer_of(net, optimizer)
    numbers = torch.arange(4) + (4 * rank if data_parallel else 8 * (rank // 2))
    with partavg.attach(net, own, mesh=mesh["replicate"], **options) as averager:
        begun = full(net)
        found = train(net, own, averager, numbers)
    found.append(full(net))

    group = first_ranks()
    if rank % 2:
        return found, None
    net = model(7 if data_parallel else 10)
    net.load_state_dict(begun)
    own = optimizer_of(net, optimizer)
    numbers = torch.arange(8 if data_parallel else 4) + 8 * (rank // 2)
    with partavg.attach(net, own, group=group, **options) as averager:
        expected = train(net, own, averager, numbers)
    return found, [*expected, full(net)]
