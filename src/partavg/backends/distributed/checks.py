"""What `attach` looks at before it begins: arguments, and models that others have in hand."""

import math
import sys
import warnings
from collections.abc import Iterable, Sequence

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from partavg.backends.combinations import check_aggregate, check_recut, check_wire
from partavg.backends.cutting import Cut
from partavg.backends.distributed.replicas import Manager
from partavg.core.adapt import Adapt
from partavg.core.aggregate import Aggregate, weighted_sum
from partavg.core.arguments import check_flag, check_kind, check_number, check_whole
from partavg.core.solver import Solver
from partavg.core.wire_formats import WIRE_FORMATS
from partavg.sentences import shown
from partavg.torch_internals import uncompiled

Group = dist.ProcessGroup | DeviceMesh


def groups_of(group: object) -> list[dist.ProcessGroup]:
    """The group of all ranks, or between machines and inside one; none for a process alone."""
    if isinstance(group, DeviceMesh):
        if group.ndim != 2:
            raise ValueError(
                f"the mesh has {group.ndim} dimensions: give it two, machines × ranks of a machine"
            )
        return group.get_all_groups()
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise ValueError(
            f"group {shown(group)} is none that this rank is in: give a process group or a mesh, "
            f"or leave it out for all ranks"
        )
    if not dist.is_initialized():
        warnings.warn(
            "torch.distributed is not set up, so this process trains alone: start with torchrun "
            "and call torch.distributed.init_process_group()",
            stacklevel=3,
        )
        return []
    assert dist.group.WORLD is not None
    return [group or dist.group.WORLD]


def check_arguments(
    weight: float,
    buffers: str,
    wire: str,
    group: Group | None,
    adapt: Adapt | None,
    partition: Cut,
    *,
    delay: int,
    shuffle: bool,
    seed: int,
    local: Sequence[str],
) -> None:
    """Raise a ValueError for values that make no sense, whatever the model."""
    check_number("weight", weight)
    if not 0 < weight < math.inf:
        raise ValueError(f"weight {weight} makes no sense: use a number above 0")
    check_whole("delay", delay, 0)
    check_whole("seed", seed, 0)
    check_flag("shuffle", shuffle)
    check_kind("local", local, list | tuple, 'patterns of names, like ["head.*"]')
    for pattern in local:
        check_kind("local", pattern, str, 'patterns of names, like ["head.*"]')
    if buffers in ("recompute", "frozen"):
        raise ValueError(f"buffers {buffers!r} is the simulator's: use part, every or local")
    check_wire(wire, partition)
    if WIRE_FORMATS[wire].codec and isinstance(group, DeviceMesh):
        raise ValueError(f"wire {wire!r} does not go with a mesh yet: use full")
    if adapt is not None:
        check_kind("adapt", adapt, Adapt, "partavg.PostLocal(…), AdaComm(…) or FedLAMA(…)")
    check_recut(adapt, partition)


def check_parts(parts: int, model: nn.Module) -> None:
    """Raise a ValueError for more parts than numbers, before anything is made for each of them."""
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if 0 < size < parts:
        raise ValueError(
            f"a model of {size:,} trainable numbers cannot fill {parts} parts: use fewer, with "
            f"parts= or a shorter interval"
        )


def check_gathering(
    aggregate: Aggregate, solver: Solver, group: Group | None, wire: str, manager: Manager | None
) -> None:
    """Raise a ValueError for collectives over which whole messages cannot be collected."""
    check_aggregate(aggregate, solver)
    refused = {"a mesh": isinstance(group, DeviceMesh), f"wire {wire!r}": wire != "full",
               "a manager": manager is not None}  # fmt: skip
    for what, given in refused.items():
        if given and aggregate is not weighted_sum:
            raise ValueError(
                f"{what} does not go with an aggregate other than the mean, which must see whole "
                f"messages of all ranks: leave one of them out"
            )


def bare(model: object, groups: Iterable[dist.ProcessGroup]) -> nn.Module:
    """A model without what is around it; a ValueError for one that others average already."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {shown(model)} is no torch.nn.Module: give the model itself")
    for module in model.modules():
        _check_not_fsdp1(module)
        if isinstance(module, DistributedDataParallel):
            _check_apart(module, groups)
    inner = uncompiled(model)
    while isinstance(inner, DistributedDataParallel):
        inner = uncompiled(inner.module)
    return inner


def _check_not_fsdp1(module: nn.Module) -> None:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # a model of it cannot be without
    if fsdp and isinstance(module, fsdp.FullyShardedDataParallel):
        raise ValueError(
            "the model is in FullyShardedDataParallel, whose ranks hold pieces of flat parameters: "
            "use torch.distributed.fsdp.fully_shard instead, and give attach the replicas' mesh="
        )


def _check_apart(model: DistributedDataParallel, groups: Iterable[dist.ProcessGroup]) -> None:
    inside = set(dist.get_process_group_ranks(model.process_group))
    for group in groups:
        both = sorted(inside.intersection(dist.get_process_group_ranks(group)))
        if len(both) > 1:
            raise ValueError(
                f"the model is in DistributedDataParallel over ranks {', '.join(map(str, both))}, "
                f"which then have nothing left to average: give attach and your loop the model "
                f"inside, model.module, or a group= of ranks that are in no DDP together"
            )
